"""The engine recorder turns one version's engine steps into observations. It knows the stats of engine processes, which
start again at 0 after a death, and the peaks of the host that they ran on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import Counter

from service.engine.protocol.messages import EngineInfo, EngineStats
from service.engine.protocol.work import Peaks, PhaseWork
from service.observability.metrics.families import EngineFamilies

QUEUE: Final = -1
"""Stands for a replica: what waits in front of all of them."""
PHASES: Final = ("prefill", "decode")
COST_TERMS: Final = ("constant", "tokens", "kv_tokens", "prefill_context")
_NOTHING: Final = EngineStats()


class EngineRecorder:
    """Observations of one version's engine processes (replicas). All series but those of peaks exist from the start."""

    def __init__(self, families: EngineFamilies, labels: tuple[str, str]) -> None:
        self._families, self._labels = families, labels
        self._last: dict[int, EngineStats] = {}
        self._peaks: dict[int, Peaks] = {}
        self._totals = [
            (families.preemptions.labels(*labels), "preemptions_total"),
            (families.prefix_queries.labels(*labels), "prefix_queried_tokens_total"),
            (families.prefix_hits.labels(*labels), "prefix_hit_tokens_total"),
            (families.draft_tokens.labels(*labels), "draft_tokens_total"),
            (families.accepted_tokens.labels(*labels), "accepted_tokens_total"),
            (families.restored_tokens.labels(*labels), "restored_tokens_total"),
            (families.hopeless.labels(*labels), "hopeless_total"),
        ]
        self._restarts = families.restarts.labels(*labels)
        self._slowdown = families.slowdown.labels(*labels)
        self._slowdown.set(1.0)
        self._shared = families.shared.labels(*labels)
        self._step = families.step_duration.labels(*labels)
        self._tokens = families.iteration_tokens.labels(*labels)
        self._sequences = families.batch_size.labels(*labels)
        self._work = {phase: _PhaseCounters(families, (*labels, phase)) for phase in PHASES}
        self._kv_usage = families.kv_usage.labels(*labels)
        self._waiting = families.waiting.labels(*labels)
        self._sums = [
            (families.running.labels(*labels), "running"),
            (self._waiting, "waiting"),
            (families.kv_offloaded.labels(*labels), "blocks_offloaded"),
        ]
        self._newest = [
            (families.token_budget.labels(*labels), "token_budget"),
            (families.cost_error.labels(*labels), "cost_error"),
            (families.backlog.labels(*labels), "backlog_seconds"),
        ]
        self._costs = [families.cost.labels(*labels, term) for term in COST_TERMS]
        self._peak_gauges: _PeakGauges | None = None

    def begin(self) -> None:
        """Forgets the engine before: the totals of the next one start at 0, and only its replicas count."""
        self._last.clear()
        self._peaks.clear()
        self.end()

    def end(self) -> None:
        """Sets the gauges of an engine that has stopped to those of an idle one. The peaks are the host's: they
        stay."""
        self._slowdown.set(1.0)
        for gauge in (self._shared, self._kv_usage, *self._costs, *(each for each, _ in (*self._sums, *self._newest))):
            gauge.set(0.0)
        if self._peak_gauges is not None:
            self._peak_gauges.rest()

    def on_ready(self, info: EngineInfo, replica: int = 0) -> None:
        """Records what a process knows of its host and of its forward, and that it is there: it may die in its first
        step. Without peaks there are no ratios of work. A slow path whose cost is not known counts as 2."""
        self._last[replica] = EngineStats(blocks_total=info.blocks_total, blocks_free=info.blocks_total)
        slow = info.slow_path
        self._slowdown.set(max(1.0, slow.slowdown or 2.0) if slow else 1.0)
        self._shared.set(info.shared_bytes)
        if info.peaks is None:
            return
        self._peaks[replica] = info.peaks
        self._peak_gauges = self._peak_gauges or _PeakGauges(self._families, self._labels, info.peaks.dtype)
        self._peak_gauges.set(self._peaks, self._last)

    def on_step(self, stats: EngineStats, replica: int = 0) -> None:
        """Records one engine step, or empty stats when the process died: totals then start again at 0. Gauges are sums
        over the replicas."""
        before = self._last.get(replica) or EngineStats()
        self._last[replica] = stats
        for counter, name in self._totals:
            now, then = getattr(stats, name), getattr(before, name)
            if now != then:
                counter.inc(now - then if now >= then else now)
        if before.blocks_total and not stats.blocks_total:
            self._restarts.inc()
        if stats.steps_total != before.steps_total and stats.step_sequences:
            self._step.observe(stats.step_seconds)
            self._tokens.observe(stats.step_tokens)
            self._sequences.observe(stats.step_sequences)
        self._work["prefill"].add(stats.prefill, before.prefill)
        self._work["decode"].add(stats.decode, before.decode)
        self._raise_peaks(stats, replica)
        self._set_gauges(stats)

    def on_queue(self, waiting: int) -> None:
        """Records the queue in front of the replicas."""
        self._last[QUEUE] = EngineStats(waiting=waiting)
        self._waiting.set(sum(stats.waiting for stats in self._last.values()))

    def _raise_peaks(self, stats: EngineStats, replica: int) -> None:
        """A rate that steps reach is one that the host can do: a peak measured on a busy host was too low."""
        peaks = self._peaks.get(replica)
        if peaks is None:
            return
        phases = (stats.prefill, stats.decode)
        flops = max(_rate(each.recent_flops, each) for each in phases)
        moved = max(_rate(each.recent_bytes, each) for each in phases)
        if flops > peaks.flops or moved > peaks.bytes_per_second:
            flops, moved = max(flops, peaks.flops), max(moved, peaks.bytes_per_second)
            self._peaks[replica] = Peaks(dtype=peaks.dtype, flops=flops, bytes_per_second=moved)

    def _set_gauges(self, newest: EngineStats) -> None:
        known = self._last.values()
        total = sum(stats.blocks_total for stats in known)
        used = sum(stats.blocks_total - stats.blocks_free - stats.blocks_cached for stats in known)
        self._kv_usage.set(used / total if total else 0.0)
        for gauge, name in self._sums:
            gauge.set(sum(getattr(stats, name) for stats in known))
        for gauge, name in self._newest:
            gauge.set(getattr(newest, name))
        for gauge, value in zip(self._costs, newest.cost, strict=False):
            gauge.set(value)
        if self._peak_gauges is not None and self._peaks:
            self._peak_gauges.set(self._peaks, self._last)


class _PhaseCounters:
    """The counters of one phase."""

    def __init__(self, families: EngineFamilies, labels: tuple[str, str, str]) -> None:
        self._counters: tuple[tuple[Counter, str], ...] = tuple(
            (family.labels(*labels), name)
            for family, name in (
                (families.flops, "flops"),
                (families.bytes, "bytes"),
                (families.step_seconds, "seconds"),
            )
        )

    def add(self, now: PhaseWork, then: PhaseWork) -> None:
        if now == then:
            return
        for counter, name in self._counters:
            present, past = getattr(now, name), getattr(then, name)
            counter.inc(present - past if present >= past else present)


class _PeakGauges:
    """The gauges of peaks and ratios, which exist once the peaks are known."""

    def __init__(self, families: EngineFamilies, labels: tuple[str, str], dtype: str) -> None:
        self._flops = families.peak_flops.labels(*labels, dtype)
        self._bytes = families.peak_bytes.labels(*labels)
        self._ratios = [
            (phase, families.mfu.labels(*labels, phase), families.bandwidth.labels(*labels, phase)) for phase in PHASES
        ]

    def rest(self) -> None:
        """Sets the ratios to 0."""
        for _, mfu, bandwidth in self._ratios:
            mfu.set(0.0)
            bandwidth.set(0.0)

    def set(self, peaks: Mapping[int, Peaks], last: Mapping[int, EngineStats]) -> None:
        """Sets the peaks of one process, as a mean over the replicas, and the ratios: work over time and peak, each
        summed over the replicas."""
        self._flops.set(sum(each.flops for each in peaks.values()) / len(peaks))
        self._bytes.set(sum(each.bytes_per_second for each in peaks.values()) / len(peaks))
        for phase, mfu, bandwidth in self._ratios:
            done = [(getattr(last.get(replica, _NOTHING), phase), each) for replica, each in peaks.items()]
            possible = sum(work.recent_seconds * each.flops for work, each in done)
            readable = sum(work.recent_seconds * each.bytes_per_second for work, each in done)
            mfu.set(sum(work.recent_flops for work, _ in done) / possible if possible else 0.0)
            bandwidth.set(sum(work.recent_bytes for work, _ in done) / readable if readable else 0.0)


def _rate(amount: float, work: PhaseWork) -> float:
    return amount / work.recent_seconds if work.recent_seconds else 0.0
