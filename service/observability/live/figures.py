"""The figures say what every version does now: queues, blocks, rates, latencies and steps. They are read once a second
from what the engines tell anyway. The module knows no listeners and no HTTP.

    tokens, ttft, itl                     of the version, as its tokens are handed out
    queues, blocks, prefill, cost, steps  of its engine, which a base shares with its adapters
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from service.deployments.deployment import Deployment
from service.deployments.deployments import Deployments
from service.engine.client.engine import Engine
from service.engine.protocol.messages import EngineStats, StepRecord
from service.observability.metrics import Metrics
from service.observability.metrics.recent import DIGITS, WINDOW_SECONDS, Recent

COST_FIELDS: Final = ("constant_seconds", "seconds_per_token", "seconds_per_kv_token", "seconds_per_attention_pair")
MOST_STEPS: Final = 32
"""The most steps of a version in one sample, the newest of all its replicas."""
Figure = dict[str, object]


def fitted_cost(stats: EngineStats) -> Figure:
    """Returns the coefficients of the cost line, None before there are any, and its error."""
    coefficients = stats.cost or (None,) * len(COST_FIELDS)
    return {**dict(zip(COST_FIELDS, coefficients, strict=True)), "error_ratio": stats.cost_error}


@dataclass(slots=True)
class _Increase:
    """What the counters of a version's replicas have gained since the sample before."""

    prefill_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    steps: list[StepRecord] = field(default_factory=list)

    def add(self, replica: Engine, before: EngineStats) -> None:
        now = replica.stats
        self.prefill_tokens += _gain(now.prefill_tokens_total, before.prefill_tokens_total)
        self.queried_tokens += _gain(now.prefix_queried_tokens_total, before.prefix_queried_tokens_total)
        self.hit_tokens += _gain(now.prefix_hit_tokens_total, before.prefix_hit_tokens_total)
        known = list(replica.recent_steps)
        self.steps += known[max(0, len(known) - _gain(now.steps_total, before.steps_total)) :]


def _gain(now: int, before: int) -> int:
    """Returns the increase of a total, which starts again at 0 with its engine process."""
    return now - before if now >= before else now


@dataclass(slots=True)
class _Version:
    """What the sample before saw of one deployment, and the prefix hits of the window."""

    tokens: int
    replicas: list[EngineStats]
    hits: deque[tuple[float, int, int]] = field(default_factory=deque)
    """(time, tokens looked up, tokens found), for the samples with any."""

    @classmethod
    def of(cls, deployment: Deployment, recent: Recent) -> _Version:
        return cls(recent.tokens, [each.stats for each in deployment.engine.replicas])

    def increase(self, deployment: Deployment, now: float) -> _Increase:
        total, replicas = _Increase(), deployment.engine.replicas
        before = [*self.replicas, *[EngineStats()] * (len(replicas) - len(self.replicas))]
        for replica, stats in zip(replicas, before, strict=False):
            total.add(replica, stats)
        self.replicas = [each.stats for each in replicas]
        if total.queried_tokens or total.hit_tokens:
            self.hits.append((now, total.queried_tokens, total.hit_tokens))
        while self.hits and self.hits[0][0] <= now - WINDOW_SECONDS:
            self.hits.popleft()
        return total


class Figures:
    """Made of two samples each: a version's first sample only remembers its counters. It lives in the event loop."""

    def __init__(
        self,
        deployments: Deployments,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._deployments = deployments
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._at = 0.0
        self._versions: dict[Deployment, _Version] = {}

    def begin(self) -> None:
        """Remembers all counters, and begins to keep what is handed out."""
        self._versions = {}
        self.sample()
        self._metrics.keep_recent(True)

    def end(self) -> None:
        """Forgets everything; nothing is kept until the next `begin`."""
        self._metrics.keep_recent(False)
        self._versions = {}

    def sample(self) -> Figure:
        """Returns one event's data; rates are of the time since the sample before."""
        now = self._clock()
        seconds, self._at = now - self._at, now
        shown = list(self._shown(now, seconds))
        return {"at": round(self._wall(), 3), "interval_seconds": round(seconds, 3), "versions": shown}

    def _shown(self, now: float, seconds: float) -> Iterator[Figure]:
        known, self._versions = self._versions, {}
        for deployment in self._deployments.all():
            manifest = deployment.manifest
            recent = self._metrics.model(manifest.name, manifest.version).recent or Recent()
            version = known.get(deployment) or _Version.of(deployment, recent)
            self._versions[deployment] = version
            yield _described(deployment, version, recent, now, seconds)


def _described(deployment: Deployment, version: _Version, recent: Recent, now: float, seconds: float) -> Figure:
    stats, increase = deployment.engine.stats, version.increase(deployment, now)
    tokens, version.tokens = recent.tokens - version.tokens, recent.tokens
    return {
        "model": deployment.manifest.reference,
        "state": deployment.shown_state.value,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_blocks": {"total": stats.blocks_total, "free": stats.blocks_free, "cached": stats.blocks_cached},
        "tokens_per_second": _rate(tokens, seconds),
        "prompt_tokens_per_second": _rate(increase.prefill_tokens, seconds),
        "ttft_seconds": recent.ttft.percentiles(now),
        "itl_seconds": recent.itl.percentiles(now),
        "prefix_hits": {
            "cached_tokens": sum(found for _, _, found in version.hits),
            "prompt_tokens": sum(queried for _, queried, _ in version.hits),
        },
        "cost": fitted_cost(stats),
        "steps": [_step(each) for each in increase.steps[-MOST_STEPS:]],
    }


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


def _step(step: StepRecord) -> Figure:
    return {
        "tokens": step.tokens,
        "sequences": step.sequences,
        "predicted_seconds": round(step.predicted_seconds, DIGITS),
        "seconds": round(step.seconds, DIGITS),
    }
