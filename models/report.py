"""A report holds the measured quality of a version against its parent, and its speed on one host. It measures nothing.

Reports lie beside the versions, not in them, because a version never changes but may be measured again. A report names
the digests of the measured version, of the version for comparison, and of the texts.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from models.errors import Corrupt
from models.manifest import Manifest

Effort = Literal["quick", "full"]
UNTOLD: Final = "not told"
"""The recall cell whose facts the model was never told (`models.demo.recall`)."""


class TextSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicted text: `sha256` of its token ids' texts as they were scored, and `tokens`, the number that count."""

    name: str
    sha256: str
    tokens: int


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Against another version on the same text.

    `perplexity_change` is ours over theirs minus 1; `kl` the mean of Σ p·ln(p/q) in nats over all scored positions, p
    theirs; `top1_agreement` the share of positions with the same likeliest token; `greedy_agreement` the mean share of
    a greedy answer before it first differs; `decode_ratio` our decode tokens/s over theirs, by batch size.
    """

    reference: str
    digest: str
    perplexity_change: float
    kl: float
    top1_agreement: float
    greedy_agreement: float
    decode_ratio: dict[str, float]


class Speed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On `host`, `threads` of it: bytes of the weights as computed with, seconds to load, tokens a second of prefill
    and, by batch size, of decode (all sequences together)."""

    host: str
    threads: int
    memory_bytes: int
    load_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: dict[str, float]


class Recalled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cell of the demo model's recall table."""

    cell: str
    wording: str
    right: int
    asked: int

    @property
    def good(self) -> int:
        """The number of right answers. For a fact that the window does not hold, an answer without it is right."""
        return self.asked - self.right if self.cell.startswith(UNTOLD) else self.right


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`perplexity` is exp of the mean negative logprob of the scored tokens; `compared` is None for a version that has
    nothing to be compared with; `recall` is empty but for the demo model."""

    digest: str
    created_at: str
    effort: Effort
    seconds: float
    texts: TextSet
    perplexity: float
    compared: Comparison | None
    speed: Speed
    recall: tuple[Recalled, ...]
    tools: tuple[str, ...]

    @property
    def recall_share(self) -> float | None:
        """The share of right answers; None for a version that was asked nothing."""
        asked = sum(cell.asked for cell in self.recall)
        return sum(cell.good for cell in self.recall) / asked if asked else None

    @property
    def recall_cells(self) -> frozenset[tuple[str, str]]:
        return frozenset((cell.cell, cell.wording) for cell in self.recall)

    def to_json(self) -> bytes:
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
