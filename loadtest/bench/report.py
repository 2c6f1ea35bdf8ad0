"""The report writes a journal as a page: the machine, every system and work, the goals, missing measurements, plots."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.goals import Goals, Verdict, shown
from loadtest.bench.journal import Journal
from loadtest.bench.plots import bars
from loadtest.bench.session import MACHINE, START
from loadtest.bench.systems import CORES, System
from loadtest.checkpoints import DEMO, LARGE, MIDDLE, MIXTURE, SMALL, TINYLLAMA, WIDE, Shape

FLAGS: Final = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")
LIMITS: Final = {
    "memory_read_gb_s": "memory read, GB/s",
    "int8_gemm_gop_s": "int8 GEMM, GOP/s",
    "bf16_gemm_gflop_s": "bf16 GEMM, GFLOP/s",
    "fp32_gemm_gflop_s": "fp32 GEMM, GFLOP/s",
}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    work: str
    figure: str
    scale: float = 1.0


def throughputs(work: str, at_once: Sequence[int], kind: str = "") -> tuple[Column, ...]:
    return tuple(Column(f"{kind}tok/s at {n}", f"{work}-{n}", "tokens_per_second") for n in at_once)


def steps(work: str, at_once: Sequence[int], kind: str = "") -> tuple[Column, ...]:
    return tuple(Column(f"{kind}step at {n}, ms", f"{work}-{n}", "step_ms") for n in at_once)


FOOTPRINT: Final = (Column("ready, s", START, "ready_s"), Column("resident then, GB", START, "bytes", 1e-9))
SPEED: Final = (*throughputs("decode", (1, 8, 32)), *steps("decode", (1, 8, 32)), *FOOTPRINT)
LATENCY: Final = (
    Column("prefill 1,024, s", "prefill", "seconds"),
    Column("packed prefill, tok/s", "prefill", "packed_tokens_per_second"),
    Column("burst TTFT p50, ms", "burst", "ttft_p50_ms"),
    Column("p95, ms", "burst", "ttft_p95_ms"),
    Column("burst tok/s", "burst", "tokens_per_second"),
    Column("ITL calm, ms", "disturbed", "itl_calm_ms"),
    Column("ITL p99 disturbed, ms", "disturbed", "itl_p99_ms"),
    Column("chat turn 20, ms", "chat", "turn_20_ms"),
    Column("cold, ms", "chat", "cold_ms"),
)
SAMPLED: Final = (
    *throughputs("sampled", (1, 8, 32), "sampled "),
    *steps("sampled", (1, 8, 32), "sampled "),
)
"""At temperature 0.7 and top-p 0.9."""
DECODE_AND_PREFILL: Final = (*SPEED, *LATENCY[:2])
SMALL_SPEED: Final = (*throughputs("small", (1, 32)), *steps("small", (1, 32)), *FOOTPRINT)


@dataclass(frozen=True, slots=True)
class Plotted:
    """Tokens a second of a work by the number of requests at once."""

    shape: Shape
    precision: str
    work: str
    at_once: tuple[int, ...]


PLOTTED: Final = {
    "int8": Plotted(TINYLLAMA, "int8", "decode", (1, 8, 32)),
    "bf16": Plotted(TINYLLAMA, "bf16", "decode", (1, 8, 32)),
    "135m": Plotted(SMALL, "int8", "small", (1, 32)),
}
"""By the end of the file's name."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the page says of the run itself. `absent`: peers that could not be installed, with the reason."""

    date: str
    command: str
    versions: Mapping[str, str]
    absent: Mapping[str, str]


def write(folder: Path, journal: Journal, systems: Sequence[System], context: Context) -> None:
    """README.md, figures.json and the plots, into `folder`; what a person wrote to its notes.md ends the page."""
    verdicts = Goals(journal, systems).verdicts()
    notes = folder / "notes.md"
    said = f"\n## Notes\n\n{notes.read_text(encoding='utf-8')}" if notes.exists() else ""
    (folder / "README.md").write_text(page(journal, systems, context, verdicts) + said, encoding="utf-8")
    whole = {
        "context": asdict(context),
        "host": host(),
        "goals": [asdict(verdict) for verdict in verdicts],
        "records": [asdict(record) for record in journal.records],
    }
    (folder / "figures.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, plotted in PLOTTED.items():
        if measured := _throughputs(journal, systems, plotted):
            title = f"{plotted.shape.name}, {plotted.precision}: output tokens a second"
            drawn = bars(title, "tok/s", [f"{n} at once" for n in plotted.at_once], measured)
            (folder / f"throughput-{name}.svg").write_text(drawn, encoding="utf-8")


def page(journal: Journal, systems: Sequence[System], context: Context, verdicts: Sequence[Verdict]) -> str:
    tables = [
        ("int8, TinyLlama-1.1B's shape", TINYLLAMA, "int8", SPEED),
        ("int8, the same shape, prompts", TINYLLAMA, "int8", LATENCY),
        ("int8, the same shape, sampled", TINYLLAMA, "int8", SAMPLED),
        ("int4, the same shape", TINYLLAMA, "int4", DECODE_AND_PREFILL),
        ("bf16, the same shape", TINYLLAMA, "bf16", SPEED),
        ("int8, 135M shape", SMALL, "int8", SMALL_SPEED),
        ("int8, a vocabulary of 152k", WIDE, "int8", (*SPEED, *SAMPLED)),
        ("int8, a shape of 3B", MIDDLE, "int8", DECODE_AND_PREFILL),
        ("int4, a shape of 3B", MIDDLE, "int4", DECODE_AND_PREFILL),
        ("int4, a shape of 7B", LARGE, "int4", DECODE_AND_PREFILL),
        ("int8, a mixture of experts", MIXTURE, "int8", DECODE_AND_PREFILL),
        ("int4, a mixture of experts", MIXTURE, "int4", DECODE_AND_PREFILL),
        ("int8, the demo model", DEMO, "int8", DECODE_AND_PREFILL),
    ]
    drawn = ((title, table(journal, _of(systems, shape, kind), columns)) for title, shape, kind, columns in tables)
    parts = [
        f"# Ours against every peer, {context.date}",
        _about(journal, context),
        *(f"## {title}\n\n{rows}" for title, rows in drawn if rows),
        *(f"![throughput](throughput-{n}.svg)" for n, each in PLOTTED.items() if _throughputs(journal, systems, each)),
        "## Goals\n\n" + goals_table(verdicts),
        "## Not measured\n\n" + missing(journal, systems, context),
    ]
    return "\n\n".join(parts) + "\n"


def _about(journal: Journal, context: Context) -> str:
    machine = host()
    commits = sorted({record.commit for record in journal.records})
    limits = [
        f"{title} {shown(journal.figure(MACHINE, 'limits', key))}"
        for key, title in LIMITS.items()
        if journal.figure(MACHINE, "limits", key) is not None
    ]
    lines = [
        f"Host: {machine['cpu']}, {CORES} cores, {machine['flags']}; {machine['memory']}. Commit {', '.join(commits)}.",
        f"Limits measured in this run: {'; '.join(limits)}.",
        f"Peers: {'; '.join(context.versions.values())}; all on {CORES} threads.",
        f"Command: `{context.command}`. Prompt 128, 64 new tokens, greedy, all output tokens over all time unless the "
        "column says otherwise; medians, (n) the rounds where fewer than three.",
    ]
    return "  \n".join(lines)


def table(journal: Journal, systems: Sequence[System], columns: Sequence[Column]) -> str:
    """A row for each system that took part, `–` where there is no figure; columns that no system has are left out. ""
    where there is no column."""
    rows = [
        (system, [_cell(journal, system, column) for column in columns])
        for system in systems
        if any(record.system == system.name for record in journal.records)
    ]
    used = [at for at in range(len(columns)) if any(cells[at] != "–" for _, cells in rows)]
    if not used:
        return ""
    head = ["system", "form", *(columns[at].title for at in used)]
    lines = [_row(head), _row(["---"] * len(head))]
    for system, cells in rows:
        name = f"**{system.name}**" if system.ours else system.name
        lines.append(_row([name, system.form, *(cells[at] for at in used)]))
    return "\n".join(lines)


def _cell(journal: Journal, system: System, column: Column) -> str:
    value = journal.figure(system.name, column.work, column.figure)
    if value is None:
        return "–"
    rounds = journal.rounds(system.name, column.work)
    return shown(value * column.scale) + (f" ({rounds})" if rounds < 3 else "")


def goals_table(verdicts: Sequence[Verdict]) -> str:
    lines = [_row(["work", "goal", "measured", "holds", "figures"]), _row(["---"] * 5)]
    for verdict in verdicts:
        unknown = "not measured" if verdict.value is None else "unclear"
        holds = {True: "yes", False: "no", None: unknown}[verdict.holds]
        measured = "–" if verdict.value is None else f"{verdict.value:.2f}"
        lines.append(_row([verdict.work, verdict.goal, measured, holds, verdict.detail]))
    return "\n".join(lines)


def missing(journal: Journal, systems: Sequence[System], context: Context) -> str:
    lines = [f"- **{peer}** could not be prepared: {reason}" for peer, reason in context.absent.items()]
    for system in systems:
        reasons = {
            (record.work, record.error)
            for record in journal.records
            if record.system == system.name and record.error and not journal.rounds(system.name, record.work)
        }
        lines += [f"- {system.name}, {work}: {reason}" for work, reason in sorted(reasons)]
    return "\n".join(lines) or "Nothing."


def _throughputs(journal: Journal, systems: Sequence[System], plotted: Plotted) -> dict[str, list[float | None]]:
    """By system that has a figure, for each number at once."""
    found = {
        system.name: [journal.figure(system.name, f"{plotted.work}-{n}", "tokens_per_second") for n in plotted.at_once]
        for system in _of(systems, plotted.shape, plotted.precision)
    }
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _of(systems: Sequence[System], shape: Shape, precision: str) -> list[System]:
    return [system for system in systems if system.shape is shape and system.precision == precision]


def host() -> dict[str, str]:
    """Processor, the flags that decide which kernels run, and memory."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in info.split("\n\n")[0].splitlines() if ":" in line)
    named = {name.strip(): value.strip() for name, value in fields.items()}
    has = named.get("flags", "").split()
    flags = [flag for flag in FLAGS if flag in has]
    lacks = [flag for flag in FLAGS if flag not in has]
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": named.get("model name", platform.machine()),
        "flags": f"{' '.join(flags)}, without {' '.join(lacks)}",
        "memory": f"{int(total.split()[1]) / 2**20:.0f} GiB",
    }


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
