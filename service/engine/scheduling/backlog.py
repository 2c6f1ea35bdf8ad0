"""The backlog is the work ahead of the first token of a new request. It reads sequences and blocks, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.scheduling.batching import Backlog
from service.engine.scheduling.cost import chunk_attention
from service.engine.sequences.sequence import Sequence


def backlog_of(
    running: SequenceOf[Sequence],
    waiting: SequenceOf[Sequence],
    blocks: BlockManager,
    max_num_seqs: int,
    seat_seconds: float,
) -> Backlog:
    """Returns the backlog of the running and the waiting sequences, at most `max_num_seqs` at once; one of
    these ends every `seat_seconds`."""
    decodes = [each for each in running if each.num_computed_tokens + 1 == len(each.token_ids)]
    if len(decodes) == len(running) and not waiting:
        return Backlog(decodes=len(decodes), streams=num_streams(decodes))
    prefills = [(each.num_computed_tokens, each.num_remaining_tokens) for each in running]
    prefills = [(computed, left) for computed, left in prefills if left > 1]
    prefills += [(each.num_expected_cached_tokens, _uncached(each)) for each in waiting]
    tokens = sum(left for _, left in prefills)
    offloaded = sum(each.num_expected_offloaded_blocks for each in waiting)
    return Backlog(
        decodes=len(decodes),
        kv_tokens=sum(each.num_tokens for each in decodes),
        streams=num_streams(decodes),
        prefills=len(prefills),
        tokens=tokens,
        attention=sum(chunk_attention(computed, left) for computed, left in prefills),
        unseated=max(0, len(running) + len(waiting) - max_num_seqs),
        seat_seconds=seat_seconds,
        copy_seconds=blocks.copy_seconds(offloaded, blocks.blocks_for(tokens)),
    )


def num_streams(decodes: SequenceOf[Sequence]) -> int:
    return sum([each.request.is_streamed for each in decodes])


def _uncached(sequence: Sequence) -> int:
    """Returns the tokens that a waiting sequence is expected to compute, by its cached prefix at arrival."""
    return sequence.num_tokens - sequence.num_expected_cached_tokens
