"""The mixed load has short and long requests at random, at 70 % of capacity: continuous batching against whole batches.

The same arrivals go to our server, to BentoML's adaptive dispatcher over transformers, and to transformers behind fixed
(size, wait) batching, all in the precision that this processor is fastest in without quantization; ours in int8 beside.
Capacity is what our server answers when the whole load is there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from loadtest.bench.cache import Cache
from loadtest.bench.journal import Journal, Record
from loadtest.bench.plots import bars
from loadtest.bench.report import host
from loadtest.bench.running import Failed, Running
from loadtest.bench.session import commit
from loadtest.bench.systems import OURS, Precision, System
from loadtest.bench.wave import Asked, Told, quantile, random_prompts, throughput
from loadtest.bench.works import Figures
from loadtest.checkpoints import SMALL

LOAD: Final = 0.7
DTYPES: Final = {"bf16": "bfloat16", "fp32": "float32"}
FIXED: Final = ((8, 0.05), (32, 0.5))
"""(size, wait in seconds) of fixed batching: eager, and patient."""


@dataclass(frozen=True, slots=True)
class Load:
    """`long`: share of requests that are long. `burst`: mean number of requests that arrive together."""

    name: str
    long: float
    burst: float


LOADS: Final = (Load("mostly short", 0.1, 1.0), Load("half and half", 0.5, 1.0), Load("half, in bursts", 0.5, 6.0))


def requests(load: Load, count: int, rate: float | None, draw: Random) -> list[Asked]:
    """`count` requests of `load` at `rate` a second on average, Poisson in their bursts; all at once without a rate."""
    asked, at = [], 0.0
    for _ in range(count):
        low, high, new = (128, 512, (48, 128)) if draw.random() < load.long else (16, 64, (8, 32))
        (prompt,) = random_prompts(SMALL, 1, draw.randint(low, high), draw)
        if rate and (load.burst <= 1 or draw.random() < 1 / load.burst):
            at += draw.expovariate(rate / load.burst)
        asked.append(Asked(prompt, draw.randint(*new), at))
    return asked


def systems(precision: Precision) -> list[System]:
    dtype = DTYPES[precision]
    fixed = [
        System(
            f"fixed size {size}, wait {wait * 1e3:.0f} ms",
            "transformers",
            SMALL,
            precision,
            options=(dtype, "static", str(size), str(wait)),
        )
        for size, wait in FIXED
    ]
    ours = System(f"dosirak {precision}", OURS, SMALL, precision, http=True)
    quantized = System("dosirak int8", OURS, SMALL, "int8", http=True)
    return [ours, quantized, System("BentoML dispatcher", "bentoml", SMALL, precision, http=True), *fixed]


def figures(told: Sequence[Told]) -> Figures:
    """Latency from arrival to last token, in milliseconds, and output tokens a second."""
    waits = [(answer.end - answer.at) * 1e3 for answer in told]
    return {
        "p50_ms": quantile(waits, 0.5),
        "p95_ms": quantile(waits, 0.95),
        "tokens_per_second": throughput(told),
        "span_s": max(answer.end for answer in told),
    }


async def run(cache: Cache, out: Path, quick: bool) -> int:
    """Measure what the journal does not hold, then write mixed.md and its plots. Exit status 1 when ours failed."""
    native = "bf16" in host()["flags"].split("without")[0]
    precision: Precision = "bf16" if native else "fp32"
    if precision == "fp32":
        cache.prepare_fp32(SMALL)
    journal = Journal(out / "mixed.jsonl")
    compared = systems(precision)
    count = 40 if quick else 120
    for system in compared:
        if all(journal.holds(system.name, load.name, 0) for load in LOADS):
            continue
        await _measure(cache, journal, system, compared[0], count)
    write(out, journal, compared, count)
    return int(any(not journal.holds(compared[0].name, load.name, 0) for load in LOADS))


async def _measure(cache: Cache, journal: Journal, system: System, ours: System, count: int) -> None:
    try:
        running = await system.start(cache)
    except (Failed, OSError, TimeoutError) as error:
        for load in LOADS:
            _note(journal, system, load.name, {}, str(error))
        return
    try:
        await running.wave(requests(LOADS[1], 4, None, Random("warm")))
        for load in LOADS:
            if system is ours:
                await _measure_capacity(running, journal, ours, load, count)
            if not journal.holds(system.name, load.name, 0):
                rate = journal.figure(ours.name, f"{load.name} capacity", "requests_per_second")
                assert rate is not None  # ours is the first to run
                told = await running.wave(requests(load, count, LOAD * rate, Random(f"mixed {load.name}")))
                _note(journal, system, load.name, figures(told))
    except (Failed, OSError, ValueError) as error:
        _note(journal, system, load.name, {}, str(error))
    finally:
        await running.end()


async def _measure_capacity(running: Running, journal: Journal, ours: System, load: Load, count: int) -> None:
    name = f"{load.name} capacity"
    if not journal.holds(ours.name, name, 0):
        told = await running.wave(requests(load, count // 2, None, Random(name)))
        seconds = max(answer.end for answer in told)
        _note(journal, ours, name, {"requests_per_second": len(told) / seconds, "tokens_per_second": throughput(told)})


def _note(journal: Journal, system: System, work: str, found: Figures, error: str = "") -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    journal.add(Record(system.name, work, 0, found, commit(), now, error))
    shown = error or ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    print(f"{now[11:19]}  {system.name:28} {work:24} {shown}", flush=True)


def write(out: Path, journal: Journal, compared: Sequence[System], count: int) -> None:
    """mixed.md, mixed-p95.svg and mixed-tokens.svg."""
    machine = host()
    lines = [
        "# Mixed load at 70 % of capacity",
        "",
        f"Host: {machine['cpu']}, {machine['flags']}. Shape {SMALL.name} (135M), {count} requests a load: short "
        "(prompt 16-64, 8-32 new) and long (128-512, 48-128 new). Latency is from arrival to the last token.",
        "",
        "| load | requests/s | system | p50, ms | p95, ms | tokens/s |",
        "|---|---|---|---|---|---|",
    ]
    for load in LOADS:
        rate = journal.figure(compared[0].name, f"{load.name} capacity", "requests_per_second")
        for system in compared:
            cells = [journal.figure(system.name, load.name, name) for name in ("p50_ms", "p95_ms", "tokens_per_second")]
            told = [f"{cell:,.0f}" if cell is not None else "–" for cell in cells]
            offered = f"{LOAD * rate:.2f}" if rate else "–"
            lines.append(f"| {load.name} | {offered} | {system.name} | {' | '.join(told)} |")
    lines += ["", "![p95 latency](mixed-p95.svg)", "", "![throughput](mixed-tokens.svg)", ""]
    failed = [f"- {record.system}, {record.work}: {record.error}" for record in journal.records if record.error]
    (out / "mixed.md").write_text("\n".join([*lines, *failed]).rstrip() + "\n", encoding="utf-8")
    for figure, title, unit in (("p95_ms", "p95 latency", "ms"), ("tokens_per_second", "throughput", "tokens/s")):
        series = {
            system.name: [journal.figure(system.name, load.name, figure) for load in LOADS] for system in compared
        }
        drawn = bars(f"Mixed load at 70 % of capacity: {title}", unit, [load.name for load in LOADS], series)
        (out / f"mixed-{figure.split('_')[0]}.svg").write_text(drawn, encoding="utf-8")
