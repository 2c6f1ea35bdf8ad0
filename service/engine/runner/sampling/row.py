"""A sampler row says how one row of logits is sampled. It knows sequences and their drafts; no tensors."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from service.engine.protocol.messages import MIN_TEMPERATURE, SamplingParams
from service.engine.sequences.batch import Scheduled
from service.engine.sequences.constraint import Allowed
from service.engine.sequences.sequence import TokenCounts

MASK64 = (1 << 64) - 1
POINT_BITS = 53


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """`position` is the index of the token to be sampled among the output tokens. `counts` are those of every token
    before it; None where no penalty asks for them."""

    params: SamplingParams
    position: int
    counts: TokenCounts | None = None
    allowed: Allowed | None = None
    """What its grammar allows; None is everything."""

    @classmethod
    def of(cls, item: Scheduled, allowed: Seq[Allowed | None] = ()) -> list[SamplerRow]:
        """One for its last known token, and one for each draft behind it as if it and those before it were true.
        `allowed` has an entry for each of them, or none."""
        sequence, drafts = item.sequence, item.draft_token_ids
        params, position = sequence.request.params, sequence.num_output_tokens
        counts = sequence.counted() if is_penalised(params) else None
        masks = allowed or (None,) * (1 + len(drafts))
        rows = [cls(params, position, counts, masks[0])]
        for num_drafts in range(1, len(drafts) + 1):
            behind = counts and counts.behind(drafts[:num_drafts])
            rows.append(cls(params, position + num_drafts, behind, masks[num_drafts]))
        return rows

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < MIN_TEMPERATURE

    @property
    def point(self) -> int:
        """A number of POINT_BITS random bits, from splitmix64 (Steele, Lea and Flood, 2014) of seed and position."""
        return mix64(mix64(self.params.seed & MASK64) ^ (self.position & MASK64)) >> (64 - POINT_BITS)


def is_penalised(params: SamplingParams) -> bool:
    """Whether a token's score depends on those before it."""
    return (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0)


def mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)
