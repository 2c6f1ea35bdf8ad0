"""The connections are all open sockets of one server: how many there may be, of one peer and in all, and which of them
goes where a newcomer finds no place. They know no HTTP.

Whoever waits for nothing goes first, so that a crowd of silent sockets keeps nobody out.
"""

from __future__ import annotations

import ipaddress
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Protocol

from service.observability.logs import Seldom
from service.settings import Settings

OTHER_FILES: Final = 512
"""Files that a server has open beside its connections, at most: database, engines, models, uploads."""


class Standing(Enum):
    """What a connection waits for."""

    IDLE = auto()
    """Nothing: it has sent no whole head since its last answer."""
    SENDING = auto()
    """The end of its own body."""
    SERVED = auto()
    """An answer."""


FIRST_TO_GO: Final = (Standing.IDLE, Standing.SENDING)


class Held(Protocol):
    """A connection. `drop` ends it at once, without a word."""

    peer: str

    @property
    def standing(self) -> Standing: ...

    def drop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """`body_seconds` is the time for `LEAST_BYTES` of a body, `keep_alive_seconds` that between two requests."""

    header_seconds: float
    body_seconds: float
    keep_alive_seconds: float
    header_bytes: int
    most: int
    most_of_peer: int

    @staticmethod
    def of(settings: Settings) -> Limits:
        """Returns the limits that the settings name."""
        return Limits(
            settings.header_seconds,
            settings.body_seconds,
            settings.keep_alive_seconds,
            settings.max_header_bytes,
            settings.max_connections,
            settings.max_peer_connections,
        )

    def that_files_allow(self) -> Limits:
        """Returns the limits with as many connections as this process may have open files for. Raises the process's
        own limit of them where it can: systemd's and most shells' is 1,024."""
        needed = self.most + OTHER_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return replace(self, most=max(soft - OTHER_FILES, soft // 2))
        return self


class Connections:
    """Every connection is in it from its first byte to its end, in the order of the last change of what it does.
    `on_closed` gets the reason of each that the server ended."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.on_closed: Callable[[str], None] = lambda reason: None
        self._open: dict[Held, None] = {}
        self._peers: Counter[str] = Counter()
        self._log = Seldom("connections_closed")

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, new: Held) -> bool:
        """Takes a connection in; another one may have to go. Returns False where every place is in use."""
        is_crowd = self._peers[new.peer] >= self.limits.most_of_peer
        if is_crowd or len(self._open) >= self.limits.most:
            victim = self._least(new.peer if is_crowd else None)
            if victim is None:
                return False
            self.leave(victim)
            victim.drop()
            self.closed("crowded", victim.peer)
        self._open[new] = None
        self._peers[new.peer] += 1
        return True

    def leave(self, gone: Held) -> None:
        """Frees the place; does nothing for a connection that has none."""
        if self._open.pop(gone, self) is None:
            self._peers[gone.peer] -= 1
            if not self._peers[gone.peer]:
                del self._peers[gone.peer]

    def moved(self, one: Held) -> None:
        """Says that a connection does something else now."""
        if one in self._open:
            self._open[one] = self._open.pop(one)

    def closed(self, reason: str, peer: str) -> None:
        """Counts a connection that the server ended."""
        self.on_closed(reason)
        self._log.warn(reason, peer=peer)

    def _least(self, peer: str | None) -> Held | None:
        """Returns the connection that goes first, of one peer or of all."""
        for standing in FIRST_TO_GO:
            for each in self._open:
                if each.standing is standing and peer in (None, each.peer):
                    return each
        return None


def peer_of(address: str) -> str:
    """Returns what counts as one peer: an address of IPv4, a network of 64 bits of IPv6, which one host may have whole.

    >>> peer_of("::ffff:10.0.0.1"), peer_of("2001:db8::1:2:3:4"), peer_of("nonsense")
    ('10.0.0.1', '2001:db8::', '')
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(ip) >> 64 << 64))
