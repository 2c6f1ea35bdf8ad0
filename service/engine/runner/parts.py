"""Parts of a batch whose prompts want logprobs, so that few rows of logits are alive at once. This module knows
scheduled items; no tensors.

A prompt's logits are one row of the vocabulary for each of its tokens: 1.2 GB for 2,048 tokens of 152,000 in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from service.engine.sequences.batch import Batch, SampledToken, Scheduled

PART_ROWS: Final = 256
"""Rows of prompt logits in one part: enough for the linear layers' full speed."""


def parts_of(batch: Batch) -> list[dict[int, Scheduled]]:
    """What is computed together, by the items' places in the batch; the parts one after the other. An item that is cut
    has a piece in several parts, and only its last piece can sample."""
    parts: list[dict[int, Scheduled]] = [{}]
    room = PART_ROWS
    for place, item in enumerate(batch.scheduled):
        wanted = _num_wanted(item)
        if not wanted:
            parts[0][place] = item
            continue
        if wanted <= room:
            parts[-1][place] = item
            room -= wanted
            continue
        for piece in _pieces(item, room):
            if not room:
                parts.append({})
                room = PART_ROWS
            parts[-1][place] = piece
            room -= piece.num_tokens
    return parts


def joined(earlier: SampledToken | None, later: SampledToken | None) -> SampledToken | None:
    """What two pieces of one item gave, as if they were one."""
    if earlier is None or later is None:
        return earlier or later
    return replace(later, prompt_logprobs=earlier.prompt_logprobs + later.prompt_logprobs)


def _num_wanted(item: Scheduled) -> int:
    """Rows of which prompt logprobs are told. An encoder's input is never cut; nor does it have logits."""
    sequence, params = item.sequence, item.sequence.request.params
    start = sequence.num_computed_tokens
    if params.prompt_logprobs is None or sequence.num_encoder_slots or start >= sequence.num_prompt_tokens:
        return 0
    return max(0, start + item.num_tokens - max(start, params.prompt_logprobs_start - 1))


def _pieces(item: Scheduled, room: int) -> Iterator[Scheduled]:
    """The first takes what room there is, if any."""
    start, left = item.sequence.num_computed_tokens, item.num_tokens
    while left:
        count = min(left, room or PART_ROWS)
        whole = count == item.num_tokens
        yield item if whole else Scheduled(replace(item.sequence, num_computed_tokens=start), count)
        start, left, room = start + count, left - count, 0
