"""How close versions are to one another on the same text: perplexity, top-1 agreement, how far logprobs move.

Teacher-forced through the engine that serves: every position of a text is predicted from the true tokens before it, so
a difference is the version's own and not one that has added up.

    perplexity = exp(-mean ln p(token)) over all positions but the first of each text
    agreement  = share of positions whose likeliest token is the first version's
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from models.demo.grammar import Style, dialogue
from models.repository import Repository
from service.engine.request import Request, SamplingParams, TokenLogprobs
from service.errors import InvalidRequest
from service.offline import load_core, run_all
from service.settings import Settings
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

FIRST_DIALOGUE = 900_000_000  # far from those that training saw
PREDICTED = SamplingParams(max_tokens=1, prompt_logprobs=1)


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a version thought of every position of the texts: the true token's logprob, and the likeliest token."""

    logprobs: list[float]
    likeliest: list[int]

    @classmethod
    def of(cls, positions: Sequence[TokenLogprobs]) -> Predictions:
        return cls([each.logprob for each in positions], [each.top[0][0] for each in positions])

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))

    def agreement(self, other: Predictions) -> float:
        same = sum(mine == theirs for mine, theirs in zip(self.likeliest, other.likeliest, strict=True))
        return same / len(self.likeliest)

    def shift(self, other: Predictions) -> float:
        """Mean absolute difference of the true tokens' logprobs, in nats."""
        moved = (abs(mine - theirs) for mine, theirs in zip(self.logprobs, other.logprobs, strict=True))
        return sum(moved) / len(self.logprobs)


def print_comparison(settings: Settings, references: Sequence[str], texts: int, console: Console) -> None:
    """Every version against the first, on `texts` dialogues with values and wordings that training never saw.
    Raises InvalidRequest when two versions do not share a vocabulary."""
    repository = Repository(settings.data_dir)
    predictions: dict[str, Predictions] = {}
    prompts: list[list[int]] | None = None
    with Progress(console=console, transient=True) as progress:
        for manifest in map(repository.resolve, references):
            mine = _prompts(Tokenizer.load(repository.path(manifest)), texts)
            if prompts is not None and mine != prompts:
                raise InvalidRequest(f"{manifest.reference} does not split text into tokens as {references[0]} does")
            prompts = mine
            longest = max(map(len, mine)) + 1
            if longest > manifest.context_window:
                raise InvalidRequest(
                    f"{manifest.reference} has a window of {manifest.context_window}; {longest} needed"
                )
            label = f"{manifest.reference} {manifest.precision}"
            task = progress.add_task(label, total=texts)
            core = load_core(settings, repository, manifest)
            asked = [Request(str(number), tuple(ids), PREDICTED, arrival=number) for number, ids in enumerate(mine)]
            made = run_all(core, asked, partial(progress.update, task, advance=1))
            predictions[label] = Predictions.of(
                [each for outputs in made.values() for output in outputs for each in output.prompt_logprobs]
            )
    console.print(_rendered(predictions))
    count = sum(len(ids) - 1 for ids in prompts or [])
    console.print(
        f"{count} positions of {texts} dialogues whose values and wordings training never saw", highlight=False
    )


def _prompts(tokenizer: Tokenizer, texts: int) -> list[list[int]]:
    """Whole dialogues as the version's own chat template renders them."""
    made = (dialogue(FIRST_DIALOGUE + number, Style((6, 12)), "test", "test") for number in range(texts))
    return [
        tokenizer.render_chat(
            [Message(message["role"], message["content"]) for message in each.messages],
            documents=[Document(document["text"], document.get("title")) for document in each.documents],
        )
        for each in made
    ]


def _rendered(predictions: dict[str, Predictions]) -> Table:
    view = Table("version", "perplexity", "to the first", "top-1 agreement", "logprobs moved by")
    first = next(iter(predictions.values()))
    for label, each in predictions.items():
        view.add_row(
            label,
            f"{each.perplexity:.4f}",
            f"{each.perplexity / first.perplexity - 1:+.2%}",
            f"{each.agreement(first):.2%}",
            f"{each.shift(first):.4f} nats",
        )
    return view
