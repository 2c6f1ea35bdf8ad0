"""The poison register knows requests that kill engines by their content, so that a client's retry kills no engine.

It knows no streams and no processes.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from service.engine.client.restart_policy import DEFAULT_POLICY, RestartPolicy
from service.engine.protocol.messages import Request
from service.errors import EngineKilled

MOST_REMEMBERED: Final = 1000
Fingerprint = bytes


def fingerprint(request: Request) -> Fingerprint:
    """Returns a hash of the computed content: prompt, parameters, adapter. It leaves out the seed, because a retry
    draws a new one, and also the id, the owner and the times."""
    content = (request.token_ids, replace(request.params, seed=0), request.adapter)
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()


@dataclass(slots=True)
class _Offence:
    until: float
    seconds: float


class PoisonRegister:
    """Lives in the event loop. Replicas of one engine share one. It forgets the oldest of over 1,000 entries."""

    def __init__(self, policy: RestartPolicy = DEFAULT_POLICY, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._offences: OrderedDict[Fingerprint, _Offence] = OrderedDict()

    def add(self, request: Request) -> float:
        """Refuses the content from now on and returns for how many seconds. Each further offence doubles the seconds,
        so content that always kills is admitted ever less often."""
        key, policy = fingerprint(request), self._policy
        before = self._offences.pop(key, None)
        seconds = min(2 * before.seconds if before else policy.poison_seconds, policy.max_poison_seconds)
        self._offences[key] = _Offence(self._clock() + seconds, seconds)
        if len(self._offences) > MOST_REMEMBERED:
            self._offences.popitem(last=False)
        return seconds

    def check(self, request: Request) -> None:
        """Raises EngineKilled for added content whose time has not passed. Costs nothing while the register is
        empty."""
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
