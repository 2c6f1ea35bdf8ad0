"""The ledger: what each client saw of each request, and when the service lived. It judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from loadtest.torture.endings import Dialect


@dataclass(slots=True)
class Life:
    """One start of the service, to the end of its last process. `end` says what ended it: nothing yet, SIGKILL to all
    of its processes, or SIGTERM."""

    began_at: float
    ready_at: float = inf
    end_at: float = inf
    """When the signal was sent."""
    gone_at: float = inf
    end: Literal["", "kill", "drain"] = ""


@dataclass(slots=True)
class Exchange:
    """One request and what came back, until its client had it whole, went away, or lost the connection."""

    kind: str
    sent_at: float
    dialect: Dialect = "whole"
    question: str = ""
    ended_at: float = inf
    status: int = 0
    """0: no answer."""
    retry_after: str = ""
    version: str = ""
    body: bytes = b""
    lost: str = ""
    """How the connection ended before its answer did: `refused`, or an exception's name."""
    has_left: bool = False
    """The client closed the connection before the end."""
    is_replayed: bool = False


@dataclass(slots=True)
class Lives:
    """All lives of a service, in order."""

    lives: list[Life] = field(default_factory=list)

    @property
    def now(self) -> Life:
        return self.lives[-1]

    def begin(self, at: float) -> Life:
        self.lives.append(Life(at))
        return self.now

    def killed(self, exchange: Exchange) -> bool:
        """Returns whether SIGKILL met a life while the exchange ran."""
        return any(life.end == "kill" for life in self._met(exchange))

    def drained(self, exchange: Exchange) -> bool:
        """Returns whether the exchange ran while a life drained."""
        return any(life.end == "drain" and life.end_at <= exchange.ended_at for life in self._met(exchange))

    def away(self, exchange: Exchange) -> bool:
        """Returns whether no life was ready at some time of the exchange, or one drained."""
        ready = [life for life in self.lives if life.ready_at <= exchange.sent_at and exchange.ended_at <= life.end_at]
        return not ready

    def _met(self, exchange: Exchange) -> Sequence[Life]:
        """Returns the lives whose end, from the signal to the last process, overlaps the exchange."""
        return [each for each in self.lives if each.end_at <= exchange.ended_at and exchange.sent_at <= each.gone_at]
