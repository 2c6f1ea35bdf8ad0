"""How close versions are to one another on the same text: perplexity, top-1 agreement, how far logprobs move.

Teacher-forced through the engine that serves: every position of an answer is predicted from the true tokens before it,
so a difference is the version's own and not one that has added up. What users say is read and not scored: the demo
model was never trained to say it.

    perplexity = exp(-mean ln p(token)) over the tokens of the assistant's messages
    agreement  = share of positions whose likeliest token is the first version's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from models.demo.grammar import Style, dialogue
from models.repository import Repository
from service.engine.core import EngineCore
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
    """What a version thought of every scored position: the true token's logprob, and the likeliest token."""

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


@dataclass(frozen=True, slots=True)
class Scored:
    """A text's token ids, and the positions that count."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]

    def scored(self, predicted: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """Of the predictions of all positions but the first, those that count."""
        return [predicted[position - 1] for position in self.positions]


def print_comparison(
    settings: Settings, references: Sequence[str], count: int, console: Console, int8_kv: bool = False
) -> None:
    """Every version, with `int8_kv` also with 8-bit keys and values, against the first, on `count` dialogues with
    values and wordings that training never saw. Raises InvalidRequest when two versions do not share a vocabulary."""
    ways = {"": settings} | ({", int8 KV": settings.model_copy(update={"kv_cache_dtype": "int8"})} if int8_kv else {})
    repository = Repository(settings.data_dir)
    predictions: dict[str, Predictions] = {}
    texts: list[Scored] | None = None
    with Progress(console=console, transient=True) as progress:
        for manifest in map(repository.resolve, references):
            mine = _texts(Tokenizer.load(repository.path(manifest)), count)
            if texts is not None and mine != texts:
                raise InvalidRequest(f"{manifest.reference} does not split text into tokens as {references[0]} does")
            texts = mine
            longest = max(len(text.token_ids) for text in texts) + 1
            if longest > manifest.context_window:
                raise InvalidRequest(
                    f"{manifest.reference} has a window of {manifest.context_window}; {longest} needed"
                )
            for way, used in ways.items():
                label = f"{manifest.reference} {manifest.precision}{way}"
                task = progress.add_task(label, total=count)
                core = load_core(used, repository, manifest)
                predictions[label] = _predicted(core, texts, partial(progress.update, task, advance=1))
    console.print(_rendered(predictions))
    scored = len(next(iter(predictions.values())).logprobs)
    console.print(
        f"{scored} tokens of answers in {count} dialogues whose values and wordings training never saw", highlight=False
    )


def _predicted(core: EngineCore, texts: Sequence[Scored], on_end: Callable[[], object]) -> Predictions:
    asked = [Request(str(at), text.token_ids, PREDICTED, arrival=at) for at, text in enumerate(texts)]
    made = run_all(core, asked, on_end)
    return Predictions.of(
        [
            position
            for text, outputs in zip(texts, made.values(), strict=True)
            for position in text.scored([each for output in outputs for each in output.prompt_logprobs])
        ]
    )


def _texts(tokenizer: Tokenizer, count: int) -> list[Scored]:
    """Whole dialogues as the version's own chat template renders them; the assistant's tokens are scored."""
    texts = []
    for number in range(count):
        made = dialogue(FIRST_DIALOGUE + number, Style((6, 12)), "test", "test")
        chat = tokenizer.encode_chat(
            [Message(message["role"], message["content"]) for message in made.messages],
            documents=[Document(document["text"], document.get("title")) for document in made.documents],
            add_generation_prompt=False,
        )
        answers = {at for at, message in enumerate(made.messages) if message["role"] == "assistant"}
        texts.append(Scored(chat.ids(), tuple(at for at, owner in enumerate(chat.owners()) if owner in answers)))
    return texts


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
