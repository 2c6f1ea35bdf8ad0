"""A rollout in progress chooses the conversations that the candidate answers, and watches its limits. The module knows
conversations as opaque keys, and no HTTP.

A number computed from a conversation's key and the candidate decides which version answers, so a conversation stays
with its version without a memory. The module also remembers each conversation's version, so that conversations stay
with it when the weight changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Final

import structlog

from models.errors import NotFound, RepositoryError, Stale
from models.repository import rollouts as stored
from models.repository.repository import Repository
from models.repository.rollouts import Rollout
from service.tasks import BackgroundTasks

log = structlog.get_logger(__name__)

WITHDRAW: Final = "withdraw_rollout"
MOST_REMEMBERED = 100_000
WINDOW = 500
"""How many of a version's last answers count."""
LEAST_TIMES: Final = 60
"""A p95 of fewer times is about the longest of them, which one slow answer makes."""


@dataclass(slots=True)
class Observed:
    """The last answers of one version: whether each failed, and the seconds to its first token. `timed` counts the
    `requests` whose time is known: no batch waits for a first token."""

    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    requests: int = 0
    timed: int = 0

    def note(self, failed: bool, ttft: float | None) -> None:
        self.requests += 1
        self.failed.append(failed)
        if ttft is not None:
            self.timed += 1
            self.ttft.append(ttft)

    @property
    def error_rate(self) -> float:
        return sum(self.failed) / len(self.failed) if self.failed else 0.0

    @property
    def ttft_p95(self) -> float | None:
        if not self.ttft:
            return None
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]

    def describe(self) -> dict[str, float | int | None]:
        p95 = self.ttft_p95
        return {
            "requests": self.requests,
            "timed": self.timed,
            "error_rate": round(self.error_rate, 4),
            "ttft_p95_ms": None if p95 is None else round(p95 * 1000, 3),
        }


@dataclass(slots=True)
class Shadowed:
    """Shadow answers compared with the main ones that clients received."""

    agreement: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    compared: int = 0

    def note(self, agreement: float, lengths: float, latencies: float) -> None:
        self.compared += 1
        self.agreement.append(agreement)
        self.lengths.append(lengths)
        self.latencies.append(latencies)

    def describe(self) -> dict[str, float | int]:
        return {
            "compared": self.compared,
            "same": round(sum(each == 1.0 for each in self.agreement) / len(self.agreement), 4),
            "agreement": round(fmean(self.agreement), 4),
            "length_ratio": round(fmean(self.lengths), 4),
            "latency_ratio": round(median(self.latencies), 4),
        }


class Rollouts:
    """The rollouts of one server. It lives in the event loop. `refresh` reads what other processes changed."""

    def __init__(self, repository: Repository, tasks: BackgroundTasks | None = None) -> None:
        """`tasks` run what waits for shared records."""
        self._repository = repository
        self._tasks = tasks
        self._withdrawn: dict[tuple[str, str, str], str] = {}
        """Rollouts that end here, and whose end the records may not have taken yet; with the reasons."""
        self._running: dict[tuple[str, str], Rollout] = {}
        self._observed: dict[tuple[str, str, str], dict[str, Observed]] = {}
        self._shadowed: dict[tuple[str, str, str], Shadowed] = {}
        self._began: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        """(name, alias, conversation) → the version that answered it first, as far back as is remembered."""

    def refresh(self) -> None:
        running = {(each.name, each.alias): each for each in stored.all_running(self._repository)}
        ending = [each for each in running.values() if _key(each) in self._withdrawn]
        self._withdrawn = {_key(each): self._withdrawn[_key(each)] for each in ending}
        for each in ending:
            del running[each.name, each.alias]
        self._running = running

    async def _end_later(self, rollout: Rollout, reason: str) -> None:
        """Ends a rollout in the records, which may be away, or locked, or on a full disk, for long."""
        told = ""
        while _key(rollout) in self._withdrawn:
            try:
                await asyncio.to_thread(self._end, rollout, reason)
            except (RepositoryError, OSError) as error:
                if told != str(error):
                    told = str(error)
                    log.warning("rollout_end_waits", model=rollout.reference, alias=rollout.alias, error=told)
                await asyncio.sleep(1.0)
            else:
                return

    def _end(self, rollout: Rollout, reason: str) -> None:
        try:
            stored.end(self._repository, rollout.name, rollout.alias, "rolled_back", reason, rollout.started_at)
        except (NotFound, Stale) as error:  # another process or operator ended it first
            log.info("rollout_ended_meanwhile", model=rollout.reference, reason=str(error))
            return
        log.warning("rollout_rolled_back", model=rollout.reference, alias=rollout.alias, reason=reason)

    def all(self) -> list[Rollout]:
        return list(self._running.values())

    def of(self, name: str, alias: str) -> Rollout | None:
        return self._running.get((name, alias))

    def choose(self, rollout: Rollout, conversation: str | None) -> bool:
        """Returns whether the candidate is to answer. Without stickiness, or without a conversation, chance decides."""
        if conversation is None or not rollout.sticky:
            return secrets.randbelow(1_000_000) < rollout.weight * 10_000
        began = self._began.get((rollout.name, rollout.alias, conversation))
        if began in (rollout.base, rollout.candidate):
            return began == rollout.candidate
        return _share(f"{rollout.name}:{rollout.candidate} {conversation}") < rollout.weight / 100

    def settle(self, name: str, alias: str, conversation: str | None, version: str) -> str:
        """Remembers that `version` answers a conversation, while a rollout runs. Returns a note where the version
        before it was rolled back since."""
        key = (name, alias, conversation or "")
        before = self._began.get(key)
        if conversation is None or (before is None and self.of(name, alias) is None):
            return ""
        self._began[key] = version
        self._began.move_to_end(key)
        if len(self._began) > MOST_REMEMBERED:
            self._began.popitem(last=False)
        if before is None or before == version:
            return ""
        past = [each for each in stored.history(self._repository, name, alias) if each.candidate == before]
        if not past or past[-1].state not in ("rolled_back", "aborted"):
            return ""
        how = "rolled back" if past[-1].state == "rolled_back" else "withdrawn"
        return f"{name}:{before}, which answered this conversation before, was {how}; {name}:{version} answers now"

    def observe(self, rollout: Rollout, version: str, failed: bool, ttft: float | None) -> None:
        """Counts an answer of either version, if its rollout still runs; rolls the candidate back where the answer
        breaks a limit that the rollout has now."""
        running = self._still(rollout)
        if running is None:
            return
        pair = self._pair(running)
        if version in pair:
            pair[version].note(failed, ttft)
        reason = broken_limit(running, pair[running.base], pair[running.candidate])
        if reason:
            self.withdraw(running, reason)

    def withdraw(self, rollout: Rollout, reason: str) -> None:
        """Rolls a candidate back, if its rollout still runs."""
        if self._still(rollout) is None:
            return
        del self._running[rollout.name, rollout.alias]
        if self._tasks is None:
            self._end(rollout, reason)
            return
        self._withdrawn[_key(rollout)] = reason
        self._tasks.run(WITHDRAW, partial(self._end_later, rollout, reason))

    def may_arrive(self, rollout: Rollout) -> bool:
        """Returns whether a candidate that is not here may be on its way: instances that share records know a rollout
        before they have the files of its candidate."""
        records = self._repository.records
        with suppress(RepositoryError):
            return records.shared and rollout.candidate not in records.history(rollout.name).deleted
        return records.shared

    def compare(self, rollout: Rollout, agreement: float, lengths: float, latencies: float) -> None:
        """Counts a shadow answer: the share of the main answer before the two differ, and the shadow's tokens and
        seconds over the main one's."""
        self._shadowed.setdefault(_key(rollout), Shadowed()).note(agreement, lengths, latencies)

    def describe(self, rollout: Rollout) -> dict[str, object]:
        pair, shadowed = self._pair(rollout), self._shadowed.get(_key(rollout))
        return {
            "base": pair[rollout.base].describe(),
            "candidate": pair[rollout.candidate].describe(),
            "shadow": shadowed.describe() if shadowed else None,
        }

    def _still(self, rollout: Rollout) -> Rollout | None:
        """Returns the rollout as it runs now: its weight and limits may have changed. Returns None where it has ended,
        also where the same candidate is rolled out again."""
        running = self.of(rollout.name, rollout.alias)
        return running if running is not None and _key(running) == _key(rollout) else None

    def _pair(self, rollout: Rollout) -> dict[str, Observed]:
        return self._observed.setdefault(_key(rollout), {rollout.base: Observed(), rollout.candidate: Observed()})


def broken_limit(rollout: Rollout, base: Observed, candidate: Observed) -> str:
    """Returns a phrase that names the limit which the candidate breaks; empty where it breaks none."""
    limits = rollout.limits
    if candidate.requests < limits.min_requests:
        return ""
    if candidate.error_rate > limits.error_rate:
        return f"error rate {candidate.error_rate:.1%}, at most {limits.error_rate:.1%}"
    theirs, mine = base.ttft_p95, candidate.ttft_p95
    is_timed = min(base.timed, candidate.timed) >= max(limits.min_requests, LEAST_TIMES)
    if is_timed and theirs and mine and mine > limits.ttft_p95_ratio * theirs:
        return (
            f"TTFT p95 {mine / theirs:.1f}x that of {rollout.name}:{rollout.base}, at most {limits.ttft_p95_ratio:g}x"
        )
    return ""


def _key(rollout: Rollout) -> tuple[str, str, str]:
    return rollout.name, rollout.alias, rollout.started_at


def _share(key: str) -> float:
    """Returns the key's share, uniform in [0, 1)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
