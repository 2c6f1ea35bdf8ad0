"""Background work waits behind every client's request: sequences of a priority below 0, as lines of batches.

While a client's prompt waits for its first token, background work has no share of a step, and gives its places and
blocks back. Beside the clients' decodes lines of batches have a small share of the time (`BackgroundShare`). The module
knows sequences; it changes none.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final

from service.engine.sequences.sequence import Sequence

_SHARE: Final = 1 / 20
_LAST_OF_ITS_OWN: Final = -1
"""The priority of what the server itself does for its clients, as summaries. Below it are lines."""


def is_background(sequence: Sequence) -> bool:
    return sequence.request.priority < 0


def is_batch_line(sequence: Sequence) -> bool:
    return sequence.request.priority < _LAST_OF_ITS_OWN


def of_clients(sequences: SequenceOf[Sequence]) -> list[Sequence]:
    return [each for each in sequences if not is_background(each)]


def clients_wait(running: SequenceOf[Sequence], waiting: SequenceOf[Sequence]) -> bool:
    """Returns whether a client's prompt waits for its first token; both lists are in order of rank."""
    if waiting and not is_background(waiting[0]):
        return True
    return any(each.num_remaining_tokens > 1 for each in of_clients(running))


class BackgroundShare:
    """The seconds that lines may add to the steps of clients: a twentieth of the time, so that answers take a twentieth
    longer at most. What lines take at once may be more; then they pause until it is paid off, so they never starve."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._at = 0.0
        self._earns = False

    def earn(self, now: float, most: float, *, beside_clients: bool) -> None:
        """Adds the share of the time since the last call, if clients were there then, up to `most` seconds."""
        if self._earns:
            self.seconds = min(most, self.seconds + _SHARE * (now - self._at))
        self._at, self._earns = now, beside_clients

    def decodes(self, row_seconds: SequenceOf[float]) -> int:
        """Takes the seconds of decodes, in their order, while there are some left. Returns how many there were."""
        count = 0
        while count < len(row_seconds) and self.seconds > 0:
            self.seconds -= row_seconds[count]
            count += 1
        return count
