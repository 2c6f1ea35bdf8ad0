"""Wrong keys are counted by their peer: after some of them a peer gets 429 instead of 401, until it was quiet for a
while. A right key passes at any time, for it may come from the same address, behind one router.

So the limit spares the log and tells the operator. What keeps a key from being guessed is its length.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from service.api.edge.connections import peer_of
from service.errors import RateLimited
from service.observability.logs import Seldom

FREE: Final = 10
"""Wrong keys in a row that a peer may send."""
EVERY_SECONDS: Final = 6.0
"""After so long one more is free."""
LONGEST_SECONDS: Final = 60.0
ALMOST_FULL: Final = (FREE - 1) * EVERY_SECONDS
MOST_PEERS: Final = 4096
"""Peers that are remembered; the one longest quiet is forgotten first."""


class WrongKeys:
    """A leaky bucket a peer, of one number: when it will be empty. `on_wrong` gets the status of each answer,
    `on_peer` the peer as well."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_wrong: Callable[[int], None] = lambda status: None
        self.on_peer: Callable[[int, str], None] = lambda status, peer: None
        self._clock = clock
        self._empty_at: dict[str, float] = {}
        self._log = Seldom("wrong_keys")

    def count(self, scope: Scope) -> RateLimited | None:
        """Counts a wrong key. Returns the refusal where there were too many."""
        now, peer = self._clock(), peer_of(scope["client"][0]) if scope.get("client") else ""
        level = min(max(0.0, self._empty_at.pop(peer, now) - now) + EVERY_SECONDS, ALMOST_FULL + LONGEST_SECONDS)
        self._empty_at[peer] = now + level
        if len(self._empty_at) > MOST_PEERS:
            del self._empty_at[next(iter(self._empty_at))]
        is_free = level <= ALMOST_FULL + EVERY_SECONDS
        self.on_wrong(401 if is_free else 429)
        self.on_peer(401 if is_free else 429, peer)
        self._log.warn("wrong_key", peer=peer)
        if is_free:
            return None
        wait = level - ALMOST_FULL
        return RateLimited(
            f"Too many wrong keys came from this address: send the server's key, or wait {wait:.0f} s", retry_after=wait
        )

    @property
    def refused_peers(self) -> int:
        """Returns how many peers get 429 for their next wrong key."""
        now = self._clock()
        return sum(each - now > ALMOST_FULL for each in list(self._empty_at.values()))
