"""A goal of a run compares medians of one journal and says whether it holds. Goals are pure functions of the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.bench.journal import Journal
from loadtest.bench.session import MACHINE, START
from loadtest.bench.systems import System
from loadtest.checkpoints import MIXTURE, SMALL, TINYLLAMA, WIDE, Shape

OURS_HTTP: Final = "dosirak int8 http"
OURS_INT4: Final = "dosirak int4 http"
OURS: Final = "dosirak int8 offline"
PLAIN: Final = "dosirak int8 offline no lookup"
PAIRED: Final = "dosirak int8 paired"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row: `value` against `bound`, None where a figure is missing. `detail` names the figures."""

    work: str
    goal: str
    value: float | None
    holds: bool | None
    detail: str


def at_most(work: str, goal: str, value: float | None, bound: float, detail: str) -> Verdict:
    return Verdict(work, goal, value, None if value is None else value <= bound, detail)


def at_least(work: str, goal: str, value: float | None, bound: float, detail: str) -> Verdict:
    return Verdict(work, goal, value, None if value is None else value >= bound, detail)


def of_limit(work: str, goal: str, value: float | None, bound: float, detail: str) -> Verdict:
    """As `at_least`, but nothing passes a limit: a value well above 1 says that the limit was measured disturbed."""
    if value is not None and value > 1.1:
        return Verdict(work, goal, value, None, f"{detail}; the limit was measured too low, on a disturbed machine")
    return at_least(work, goal, value, bound, detail)


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


class Goals:
    """Reads `journal`; `systems` are those that took part."""

    def __init__(self, journal: Journal, systems: Sequence[System]) -> None:
        self._journal, self._systems = journal, systems

    def verdicts(self) -> list[Verdict]:
        return [
            *self._decode(),
            *self._prefill(),
            *self._small(),
            *self._bf16(),
            *self._int4(),
            *self._sampled(),
            *self._mixture(),
            *self._latency(),
            *self._speculation(),
            *self._footprint(),
            self._context(),
        ]

    def _best(
        self, work: str, figure: str, choose: Callable[..., float], shape: Shape, precision: str, only: str = ""
    ) -> tuple[float | None, str]:
        """The best peer's figure and who that is; `choose` is max or min."""
        found = {
            system.name: value
            for system in self._systems
            if not system.ours and system.shape is shape and system.precision == precision and only in system.peer
            if (value := self._journal.figure(system.name, work, figure)) is not None
        }
        if not found:
            return None, "no peer"
        best = choose(found.values())
        return best, next(name for name, value in found.items() if value == best)

    def _against(
        self, system: str, work: str, figure: str, choose: Callable[..., float], shape: Shape, precision: str
    ) -> tuple[float | None, str]:
        """Ours over the best peer's, and the figures in words."""
        ours = self._journal.figure(system, work, figure)
        best, name = self._best(work, figure, choose, shape, precision)
        return ratio(ours, best), f"{shown(ours)} against {shown(best)} ({name})"

    def _faster(
        self, title: str, system: str, work: str, shape: Shape, precision: str, bound: float, whom: str = "peer"
    ) -> Verdict:
        """Ours makes at least `bound` times the best peer's tokens a second."""
        value, detail = self._against(system, work, "tokens_per_second", max, shape, precision)
        return at_least(title, f"≥ {bound}x the best {whom}", value, bound, detail)

    def _decode(self) -> list[Verdict]:
        step, detail = self._against(OURS_HTTP, "decode-1", "step_ms", min, TINYLLAMA, "int8")
        ours, read = self._journal.figure(PLAIN, "decode-1", "step_ms"), self._machine("memory_read_gb_s")
        floor = TINYLLAMA.linear_weights / 1e6 / read if read else None
        verdicts = [
            at_most("decode step, batch 1", "≤ 0.9x the best peer", step, 0.9, detail),
            of_limit(
                "the same, offline", "≥ 0.85 of the memory limit", ratio(floor, ours), 0.85, f"{shown(floor)} ms least"
            ),
        ]
        for at_once, bound in ((8, 1.15), (32, 1.3)):
            title, work = f"output tokens/s, {at_once} at once", f"decode-{at_once}"
            verdicts.append(self._faster(title, OURS_HTTP, work, TINYLLAMA, "int8", bound))
        whole, http = (self._journal.figure(name, "burst", "tokens_per_second") for name in (OURS, OURS_HTTP))
        detail = f"{shown(http)} of {shown(whole)}"
        return [*verdicts, at_least("HTTP of offline, 32 arriving in 1 s", "≥ 0.95", ratio(http, whole), 0.95, detail)]

    def _prefill(self) -> list[Verdict]:
        alone, detail = self._against(OURS_HTTP, "prefill", "tokens_per_second", max, TINYLLAMA, "int8")
        packed, packed_detail = self._against(OURS_HTTP, "prefill", "packed_tokens_per_second", max, TINYLLAMA, "int8")
        ours, limit = self._journal.figure(PLAIN, "prefill", "tokens_per_second"), self._machine("int8_gemm_gop_s")
        done = None if ours is None else ours * 2 * TINYLLAMA.linear_weights / 1e9
        return [
            at_least("prefill of 1,024 tokens", "≥ 1.2x the best peer", alone, 1.2, detail),
            at_least("eight packed prompts of 128", "≥ 1.2x the best peer", packed, 1.2, packed_detail),
            of_limit(
                "prefill, offline", "≥ 0.88 of the int8 GEMM limit", ratio(done, limit), 0.88, f"{shown(done)} GOP/s"
            ),
        ]

    def _small(self) -> list[Verdict]:
        verdicts = []
        for at_once, bound in ((1, 1.0), (32, 1.5)):
            ours = self._journal.figure("dosirak 135M http", f"small-{at_once}", "tokens_per_second")
            peer, name = self._best(f"small-{at_once}", "tokens_per_second", max, SMALL, "int8", "llama.cpp")
            detail = f"{shown(ours)} against {shown(peer)} ({name})"
            work = f"135M shape, {at_once} at once"
            verdicts.append(at_least(work, f"≥ {bound}x llama.cpp", ratio(ours, peer), bound, detail))
        return verdicts

    def _bf16(self) -> list[Verdict]:
        return [
            self._faster(f"bf16, {n} at once", "dosirak bf16 http", f"decode-{n}", TINYLLAMA, "bf16", 1.3, "bf16 peer")
            for n in (1, 8, 32)
        ]

    def _int4(self) -> list[Verdict]:
        ours, eight = (self._journal.figure(name, "decode-1", "step_ms") for name in (OURS_INT4, OURS_HTTP))
        detail = f"{shown(ours)} against {shown(eight)} ms"
        verdicts = [at_most("int4, step at 1", "≤ 0.6x of int8", ratio(ours, eight), 0.6, detail)]
        value, detail = self._against(OURS_INT4, "decode-1", "step_ms", min, TINYLLAMA, "int4")
        return [*verdicts, at_most("int4, step at 1", "≤ 0.9x the best int4 peer", value, 0.9, detail)]

    def _sampled(self) -> list[Verdict]:
        return [
            self._faster(f"sampled, {name}, {at_once} at once", system, f"sampled-{at_once}", shape, "int8", bound)
            for shape, name, system in ((TINYLLAMA, "1.1B", OURS_HTTP), (WIDE, "152k vocabulary", "dosirak 0.5B http"))
            for at_once, bound in ((8, 1.3), (32, 1.4))
        ]

    def _mixture(self) -> list[Verdict]:
        return [
            self._faster(f"experts, {n} at once", "dosirak mixture http", f"decode-{n}", MIXTURE, "int8", 1.15)
            for n in (1, 8, 32)
        ]

    def _latency(self) -> list[Verdict]:
        verdicts = []
        for figure, name in (("ttft_p50_ms", "TTFT p50"), ("ttft_p95_ms", "TTFT p95")):
            value, detail = self._against(OURS_HTTP, "burst", figure, min, TINYLLAMA, "int8")
            verdicts.append(at_most(f"{name}, 32 arriving in 1 s", "≤ 0.8x the best peer", value, 0.8, detail))
        hit, calm = (self._journal.figure(OURS_HTTP, "disturbed", name) for name in ("itl_p99_ms", "itl_calm_ms"))
        work, detail = "ITL p99 while 1,024-token prompts arrive", f"{shown(hit)} against {shown(calm)} ms"
        verdicts.append(at_most(work, "≤ 2x an undisturbed batch's ITL", ratio(hit, calm), 2.0, detail))
        calm_p99 = self._journal.figure(OURS_HTTP, "disturbed", "itl_calm_p99_ms")
        detail = f"{shown(hit)} against {shown(calm_p99)} ms"
        verdicts.append(at_most("the same, p99 over p99", "≤ 2x", ratio(hit, calm_p99), 2.0, detail))
        share = self._journal.figure(OURS_HTTP, "chat", "share")
        turn, cold = (self._journal.figure(OURS_HTTP, "chat", name) for name in ("turn_20_ms", "cold_ms"))
        detail = f"{shown(turn)} against {shown(cold)} ms"
        return [*verdicts, at_most("turn 20 of a chat, TTFT over cold", "≤ 0.15", share, 0.15, detail)]

    def _speculation(self) -> list[Verdict]:
        verdicts = []
        for kind, bound in (("repeating", 1.8), ("fresh", 0.99), ("misleading", 0.99)):
            on, off = (self._journal.figure(PAIRED, "lookup", f"{kind}_{name}") for name in ("ms", "without_ms"))
            detail = f"{shown(off)} ms without, {shown(on)} with"
            work = f"lookup speculation, {kind} text"
            verdicts.append(at_least(work, f"≥ {bound}x without it", ratio(off, on), bound, detail))
        return verdicts

    def _footprint(self) -> list[Verdict]:
        size = self._journal.figure(OURS_HTTP, START, "engine_bytes")
        ready = self._journal.figure(OURS_HTTP, START, "ready_s")
        gigabytes = None if size is None else size / 1e9
        return [
            at_most(
                "engine RSS when ready, GB",
                "≤ 1.4",
                gigabytes,
                1.4,
                "of the process, with what of its KV cache is resident",
            ),
            at_most("start to ready over HTTP, s", "≤ 6", ready, 6.0, "`dosirak serve` until /readyz"),
        ]

    def _context(self) -> Verdict:
        """Growth of the step over the growth of the bytes that it must read: weights and KV."""
        near, far = (self._journal.figure(PLAIN, f"context-{tokens}", "step_ms") for tokens in (64, 4096))
        weights = TINYLLAMA.linear_weights
        bytes_ = (weights + TINYLLAMA.kv_bytes(4096)) / (weights + TINYLLAMA.kv_bytes(64))
        value = ratio(ratio(far, near), bytes_)
        detail = f"{shown(near)} → {shown(far)} ms, bytes x{bytes_:.2f}"
        return at_most("step at 4,096 over 64 tokens of context", "≤ 1x the bytes' growth", value, 1.05, detail)

    def _machine(self, limit: str) -> float | None:
        return self._journal.figure(MACHINE, "limits", limit)


def shown(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
