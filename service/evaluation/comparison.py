"""This module is `dosirak compare`: it measures versions side by side on the same text, each against the first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from models.manifest import Manifest
from models.repository.repository import Repository
from service.errors import InvalidRequest, NoEngine
from service.evaluation.offline import load
from service.evaluation.predictions import Predictions, predict
from service.evaluation.texts import Text, project_texts
from service.host import has_torch
from service.settings import Settings
from service.storage.records import open_repository
from service.text.tokenizer import Tokenizer


def print_comparison(
    settings: Settings, references: Sequence[str], count: int, console: Console, int8_kv: bool = False
) -> None:
    """Prints every version against the first, with `int8_kv` also with 8-bit keys and values, on the first `count` of
    the project's texts. Two versions are in memory at once. Raises InvalidRequest when versions do not split text
    alike, and NoEngine without torch."""
    if not has_torch():
        raise NoEngine
    ways = {"": settings} | ({", int8 KV": settings.model_copy(update={"kv_cache_dtype": "int8"})} if int8_kv else {})
    repository = open_repository(settings)
    manifests = [repository.resolve(reference) for reference in references]
    texts = _texts(repository, manifests, count)
    first = load(settings, repository, manifests[0])
    predictions: dict[str, Predictions] = {}
    with Progress(console=console, transient=True) as progress:
        for manifest, (way, used) in product(manifests, ways.items()):
            label = f"{manifest.reference} {manifest.precision}{way}"
            advance = partial(progress.update, progress.add_task(label, total=len(texts)), advance=1)
            predictions[label] = predict(
                [first, load(used, repository, manifest)] if predictions else [first], texts, advance
            )[-1]
    console.print(_rendered(predictions))
    scored = len(next(iter(predictions.values())).logprobs)
    console.print(f"{scored} tokens of {len(texts)} texts that no training of this project saw", highlight=False)


def _texts(repository: Repository, manifests: Sequence[Manifest], count: int) -> list[Text]:
    """Returns the texts of the first version, which the others must split alike. Raises InvalidRequest."""
    window = min(manifest.context_window for manifest in manifests)
    directories = [repository.path(manifest) for manifest in manifests]
    texts, *others = (project_texts(each, Tokenizer.load(each), window, count) for each in directories)
    for manifest, theirs in zip(manifests[1:], others, strict=True):
        if theirs != texts:
            raise InvalidRequest(
                f"{manifest.reference} does not split text into tokens as {manifests[0].reference} does"
            )
    return texts


def _rendered(predictions: dict[str, Predictions]) -> Table:
    view = Table(Column("version", overflow="fold"), "perplexity", "to the first", "top-1 agreement", "KL divergence")
    first = next(iter(predictions.values()))
    for label, each in predictions.items():
        view.add_row(
            label,
            f"{each.perplexity:.4f}",
            f"{each.perplexity / first.perplexity - 1:+.2%}",
            f"{each.agreement(first):.2%}",
            f"{each.mean_kl:.5f} nats",
        )
    return view
