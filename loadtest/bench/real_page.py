"""This module writes the page of the catalogue's model: speed and quality of each system, side by side, and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import Final

from loadtest.bench.goals import Verdict, at_least, ratio, shown
from loadtest.bench.journal import Journal
from loadtest.bench.plots import points
from loadtest.bench.report import LIMITS, Column, goals_table, host, missing, table
from loadtest.bench.report import Context as Page
from loadtest.bench.session import MACHINE, START
from loadtest.bench.systems import CORES, System

QUALITY: Final = (
    Column("KL", "quality", "kl"),
    Column("±", "quality", "kl_error", 2.0),
    Column("mean abs Δlogp", "quality", "logprob_change"),
    Column("top-1, %", "quality", "top_1", 100.0),
    Column("perplexity, %", "quality", "perplexity_change", 100.0),
)
COLUMNS: Final = (
    *(Column(f"tok/s at {n}", f"decode-{n}", "tokens_per_second") for n in (1, 8, 32)),
    Column("step at 1, ms", "decode-1", "step_ms"),
    Column("prefill of 500, tok/s", "prefill", "tokens_per_second"),
    *QUALITY,
    Column("resident, GB", START, "bytes", 1e-9),
)
AGAINST: Final = "llama.cpp file"
BOUNDS: Final = {"decode-1": 1.2, "prefill": 2.0, "decode-8": 3.0}
"""Times llama.cpp's tokens a second on the same file, at a KL no worse: by at most two standard errors of both."""


def write(
    out: Path, journal: Journal, systems: Sequence[System], versions: Mapping[str, str], absent: Mapping[str, str]
) -> None:
    """README.md, and quality.svg where speeds were measured, into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    notes = out / "notes.md"
    said = f"\n## Notes\n\n{notes.read_text(encoding='utf-8')}" if notes.exists() else ""
    (out / "README.md").write_text(page(journal, systems, versions, absent) + said, encoding="utf-8")
    if found := speeds_and_kl(journal, systems):
        drawn = points(f"{systems[0].shape.name}, one request", "tok/s", "KL", found)
        (out / "quality.svg").write_text(drawn, encoding="utf-8")


def page(journal: Journal, systems: Sequence[System], versions: Mapping[str, str], absent: Mapping[str, str]) -> str:
    machine, name = host(), systems[0].shape.name
    commits = ", ".join(sorted({record.commit for record in journal.records}))
    limits = "; ".join(
        f"{title} {shown(journal.figure(MACHINE, 'limits', key))}"
        for key, title in LIMITS.items()
        if journal.figure(MACHINE, "limits", key) is not None
    )
    positions = next((n for each in systems if (n := journal.figure(each.name, "quality", "positions"))), 0)
    found = verdicts(journal, systems)
    parts = [
        f"# {name}: tokens a second and quality",
        f"Host: {machine['cpu']}, {CORES} cores, {machine['flags']}; {machine['memory']}. Commit {commits}.  \n"
        f"Limits measured in this run: {limits}.  \n"
        f"Peers: {'; '.join(versions.values())}; all on {CORES} threads, each in a process, without HTTP.  \n"
        f"Command: `python -m loadtest.bench --model {name}`. Prompt 128, 64 new tokens, greedy, no lookup "
        "speculation; medians, (n) the rounds where fewer than three. Quality: against transformers in fp32 on the "
        f"dequantized file, {positions:,.0f} next tokens of `loadtest/texts/prose.txt`; ± is two standard errors of "
        "KL, perplexity the change.",
        table(journal, systems, COLUMNS),
        *["![tokens a second and KL](quality.svg)"] * bool(speeds_and_kl(journal, systems)),
        *(["## Beside llama.cpp on the same file\n\n" + goals_table(found)] if found else []),
        "## Not measured\n\n" + missing(journal, systems, Page("", "", {}, absent)),
    ]
    return "\n\n".join(parts) + "\n"


def verdicts(journal: Journal, systems: Sequence[System]) -> list[Verdict]:
    """Ours against llama.cpp on the file as it is, for each precision whose KL is no worse."""
    found = []
    for system in systems:
        if not system.ours or not _is_no_worse(journal, system.name):
            continue
        for work, bound in BOUNDS.items():
            mine, peer = (journal.figure(name, work, "tokens_per_second") for name in (system.name, AGAINST))
            if mine is None or peer is None:
                continue
            detail = f"{shown(mine)} against {shown(peer)} tok/s"
            goal = f"≥ {bound}x {AGAINST}"
            found.append(at_least(f"{system.precision}, {work}", goal, ratio(mine, peer), bound, detail))
    return found


def _is_no_worse(journal: Journal, name: str) -> bool:
    (ours, error), (theirs, their_error) = (
        (journal.figure(each, "quality", "kl"), journal.figure(each, "quality", "kl_error") or 0.0)
        for each in (name, AGAINST)
    )
    return ours is not None and theirs is not None and ours - theirs <= 2 * hypot(error, their_error)


def speeds_and_kl(journal: Journal, systems: Sequence[System]) -> dict[str, tuple[float, float]]:
    """Tokens a second at 1, and KL, of the systems that have both: below and to the right is better."""
    return {
        system.name: (speed, kl)
        for system in systems
        if (speed := journal.figure(system.name, "decode-1", "tokens_per_second"))
        and (kl := journal.figure(system.name, "quality", "kl"))
    }
