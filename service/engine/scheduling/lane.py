"""The lane is the work that waits behind every client's request: sequences of a priority below 0, as lines of batches.

While a client's prompt waits for its first token the lane has no share of a step, and gives seats and blocks back. It
knows sequences; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from service.engine.sequence import Sequence


def is_behind_clients(sequence: Sequence) -> bool:
    return sequence.request.priority < 0


def of_clients(sequences: SequenceOf[Sequence]) -> list[Sequence]:
    return [each for each in sequences if not is_behind_clients(each)]


def clients_wait(running: SequenceOf[Sequence], waiting: SequenceOf[Sequence]) -> bool:
    """Returns whether a client's prompt waits for its first token; both lists are in order of rank."""
    if waiting and not is_behind_clients(waiting[0]):
        return True
    return any(each.num_remaining_tokens > 1 for each in of_clients(running))
