"""The register of requests that kill engines: known by their content, so that a client's retry kills no other.

Knows no streams and no processes.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from service.engine.messages import Request
from service.engine_client.restart_policy import DEFAULT_POLICY, RestartPolicy
from service.errors import EngineKilled

MOST_REMEMBERED: Final = 1000
Fingerprint = bytes


def fingerprint(request: Request) -> Fingerprint:
    """A hash of what is computed: prompt, parameters, adapter. The seed is left out, because a retry draws a new one;
    so are the id, the owner and the times."""
    content = (request.token_ids, replace(request.params, seed=0), request.adapter)
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()


@dataclass(slots=True)
class _Offence:
    until: float
    seconds: float


class PoisonRegister:
    """Lives in the event loop; replicas of one engine share one. The oldest of over 1,000 entries is forgotten."""

    def __init__(self, policy: RestartPolicy = DEFAULT_POLICY, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._offences: OrderedDict[Fingerprint, _Offence] = OrderedDict()

    def add(self, request: Request) -> float:
        """Refuse the content from now on, for so many seconds. Each offence after the first doubles them: content that
        kills whenever it is let in is let in ever less often."""
        key, policy = fingerprint(request), self._policy
        before = self._offences.pop(key, None)
        seconds = min(2 * before.seconds if before else policy.poison_seconds, policy.max_poison_seconds)
        self._offences[key] = _Offence(self._clock() + seconds, seconds)
        if len(self._offences) > MOST_REMEMBERED:
            self._offences.popitem(last=False)
        return seconds

    def check(self, request: Request) -> None:
        """Raises EngineKilled for content that was added and whose time has not passed. Free while nothing is known."""
        offence = self._offences.get(fingerprint(request)) if self._offences else None
        left = offence.until - self._clock() if offence else 0.0
        if left > 0:
            raise refusal(left)


def refusal(seconds: float) -> EngineKilled:
    return EngineKilled(
        "This request ended the engine process each time it was tried: change its prompt or its parameters; the same "
        f"request is refused for {seconds:.0f} s",
        refused_seconds=round(seconds),
    )
