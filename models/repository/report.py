"""A report holds the measured quality of a version against its parent, and its speed on one host. It measures nothing.

Reports lie beside the versions, not in them, because a version never changes but may be measured again. A report names
the digests of the measured version, of the version for comparison, and of the texts. Reports of earlier releases have
no intervals, amounts and parts of texts; they are read all the same. A report may be foreign, from an export: what is
decoded has bounds, so that whoever computes with a report meets no zero as a divisor and no overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec

from models.errors import Conflict, Corrupt
from models.manifest import Manifest
from models.repository.intervals import LARGEST_EXPONENT, Interval

Effort = Literal["check", "quick", "full"]
ReportState = Literal["not_measured", "measuring", "measured"]
CLEAR: Final = 0.2
"""Nats. A position is clear where the baseline's likeliest token leads the second by so much. bf16 itself changes
likeliest tokens of fp32 below that alone: of SmolLM2-135M 84 of 9,929, none where fp32 leads by more than 0.115. Where
the library computes, logits from 16 to 32 are whole eighths in bf16, so that a lead of 0.125 is one step."""
UNTOLD: Final = "not told"
"""The recall cell whose facts the model was never told (`models.demo.recall`)."""
_LARGEST: Final = 1e100
"""Of numbers that are summed and squared: the square is a float yet."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One text of the set: the beginning of its `sha256`, the tokens that count, and the sum of their -ln p in nats."""

    sha256: str
    tokens: _Count
    loss: Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]


class TextSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicted text: `sha256` of its token ids' texts as they were scored, and `tokens`, the number that count.
    `parts` are its texts one by one, so that reports of different length are compared on the texts that both have."""

    name: str
    sha256: str
    tokens: _Count
    parts: tuple[TextPart, ...] = ()

    @property
    def scored(self) -> list[TextPart]:
        """The parts with tokens that count. Behind an encoder a short text may have none."""
        return [part for part in self.parts if part.tokens]


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Against another version on the same text.

    `perplexity_change` is ours over theirs minus 1; `kl` the mean of Σ p·ln(p/q) in nats over all scored positions, p
    theirs; `top1_agreement` the share of positions with the same likeliest token, and `clear_top1_agreement` that of
    the positions that are clear in theirs (`CLEAR`), whose share is `clear`; `greedy_agreement` the mean share of a
    greedy answer before it first differs; `decode_ratio` our decode tokens/s over theirs, by batch size. Reports of
    earlier releases say nothing of clear positions; nor does one that has none. A check has no greedy answers.
    """

    reference: str
    digest: str
    perplexity_change: Annotated[float, msgspec.Meta(ge=-1)]
    kl: float
    top1_agreement: _Share
    greedy_agreement: _Share | None
    decode_ratio: dict[str, _NotNegative]
    clear_top1_agreement: _Share | None = None
    clear: _Share | None = None


class Speed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On `host`, `threads` of it: bytes of the weights as computed with, seconds to load, tokens a second of prefill
    and, by batch size, of decode (all sequences together)."""

    host: str
    threads: _Count
    memory_bytes: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    load_seconds: _NotNegative
    prefill_tokens_per_second: _NotNegative
    decode_tokens_per_second: dict[str, _NotNegative]


class Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured within the time: texts, greedy answers and the tokens of each, recall questions, and of speed
    the rounds, the tokens of one prefill, and the tokens of one prompt before decoding."""

    texts: _Count
    answers: _Count
    answer_tokens: _Count
    questions: _Count
    rounds: _Count
    prefill_tokens: _Count
    prompt_tokens: _Count


class Recalled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cell of the demo model's recall table. Raises ValueError for more right answers than questions."""

    cell: str
    wording: str
    right: _Count
    asked: _Count

    def __post_init__(self) -> None:
        if self.right > self.asked:
            raise ValueError(f"{self.right} of {self.asked} answers cannot be right")

    @property
    def good(self) -> int:
        """The number of right answers. For a fact that the window does not hold, an answer without it is right."""
        return self.asked - self.right if self.cell.startswith(UNTOLD) else self.right


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`perplexity` is exp of the mean negative logprob of the scored tokens; `compared` is None for a version that has
    nothing to be compared with; `recall` is empty but for the demo model.

    `intervals` are the 95 % intervals by the figure's path, as `compared.kl` or `speed.decode_tokens_per_second.8`. A
    figure that rests on too little for an interval has none. `budget_seconds` is what the whole may take, loading
    included; None without a limit."""

    digest: str
    created_at: str
    effort: Effort
    seconds: _NotNegative
    texts: TextSet
    perplexity: Annotated[float, msgspec.Meta(gt=0)]
    compared: Comparison | None
    speed: Speed
    recall: tuple[Recalled, ...]
    tools: tuple[str, ...]
    intervals: dict[str, Interval] = {}
    amounts: Amounts | None = None
    budget_seconds: _NotNegative | None = None

    @property
    def recall_counts(self) -> tuple[int, int]:
        """The numbers of right answers and of questions."""
        return sum(cell.good for cell in self.recall), sum(cell.asked for cell in self.recall)

    @property
    def recall_share(self) -> float | None:
        """The share of right answers; None for a version that was asked nothing."""
        right, questions = self.recall_counts
        return right / questions if questions else None

    @property
    def recall_cells(self) -> frozenset[tuple[str, str]]:
        return frozenset((cell.cell, cell.wording) for cell in self.recall)

    @property
    def text_keys(self) -> set[str]:
        """The texts by their content; of a report of earlier releases the whole set."""
        return {part.sha256 for part in self.texts.scored} or {self.texts.sha256}

    def perplexity_of(self, keys: set[str]) -> float:
        """Returns the perplexity over some of the texts, which it has all."""
        if keys == self.text_keys:
            return self.perplexity
        parts = [part for part in self.texts.scored if part.sha256 in keys]
        mean = sum(part.loss for part in parts) / sum(part.tokens for part in parts)
        return math.exp(min(mean, LARGEST_EXPONENT))

    def to_json(self) -> bytes:
        """Raises Conflict for a report with a number that JSON cannot hold: NaN or an infinity."""
        unusable = ", ".join(_not_finite("", msgspec.to_builtins(self)))
        if unusable:
            raise Conflict(
                f"The report is not stored, because these numbers in it are not finite: {unusable}. Evaluate the "
                "version again; if the numbers stay so, its weights are damaged: import it again"
            )
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes, manifest: Manifest) -> Report:
        """Returns the report in a text. Raises Corrupt for a text that is no report, or that measured other content
        than `manifest`'s."""
        try:
            report = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"The report of {manifest.reference} is damaged: {error}; evaluate the version again"
            ) from None
        if report.digest != manifest.digest:
            raise Corrupt(f"The report of {manifest.reference} is of other content; evaluate the version again")
        return report


def _not_finite(path: str, value: object) -> Iterator[str]:
    """Yields the paths of the numbers that are not finite, as `compared.kl`."""
    if isinstance(value, dict | list | tuple):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _not_finite(f"{path}.{name}" if path else str(name), each)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path


def on_shared_texts(reports: Sequence[Report | None]) -> list[float | None]:
    """Returns each report's perplexity over the texts that all have. The first report leads: one that shares no text
    with it, or with those before it that do, has None, and is left out."""
    shared: set[str] = set()
    together: list[Report] = []
    for report in filter(None, reports):
        both = report.text_keys & shared if together else report.text_keys
        if both:
            shared = both
            together.append(report)
    return [report.perplexity_of(shared) if report and report in together else None for report in reports]
