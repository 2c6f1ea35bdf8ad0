"""This module is `dosirak compare`: it measures versions side by side on the same text, each against the first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from service.errors import InvalidRequest
from service.evaluation.offline import load
from service.evaluation.predictions import Predictions, predict
from service.evaluation.texts import Text, dialogues
from service.records import open_repository
from service.settings import Settings
from service.text.tokenizer import Tokenizer


def print_comparison(
    settings: Settings, references: Sequence[str], count: int, console: Console, int8_kv: bool = False
) -> None:
    """Prints every version against the first, with `int8_kv` also with 8-bit keys and values, on `count` dialogues with
    values and wordings that training never saw. Raises InvalidRequest when two versions do not share a vocabulary."""
    from service.runner.scoring import Distributions

    ways = {"": settings} | ({", int8 KV": settings.model_copy(update={"kv_cache_dtype": "int8"})} if int8_kv else {})
    repository = open_repository(settings)
    manifests = [repository.resolve(reference) for reference in references]
    window = min(manifest.context_window for manifest in manifests)
    found: dict[str, Predictions] = {}
    texts: list[Text] | None = None
    with Distributions() as kept, Progress(console=console, transient=True) as progress:
        for manifest in manifests:
            mine = dialogues(Tokenizer.load(repository.path(manifest)), window, count)
            if texts is not None and mine != texts:
                raise InvalidRequest(f"{manifest.reference} does not split text into tokens as {references[0]} does")
            texts = mine
            for way, used in ways.items():
                label = f"{manifest.reference} {manifest.precision}{way}"
                advance = partial(progress.update, progress.add_task(label, total=len(texts)), advance=1)
                found[label] = predict(load(used, repository, manifest), texts, kept, not found, advance)
    console.print(_rendered(found))
    scored = len(next(iter(found.values())).logprobs)
    console.print(
        f"{scored} tokens of answers in {count} dialogues whose values and wordings training never saw", highlight=False
    )


def _rendered(found: dict[str, Predictions]) -> Table:
    view = Table("version", "perplexity", "to the first", "top-1 agreement", "KL divergence")
    first = next(iter(found.values()))
    for label, each in found.items():
        view.add_row(
            label,
            f"{each.perplexity:.4f}",
            f"{each.perplexity / first.perplexity - 1:+.2%}",
            f"{each.agreement(first):.2%}",
            f"{each.mean_kl:.5f} nats",
        )
    return view
