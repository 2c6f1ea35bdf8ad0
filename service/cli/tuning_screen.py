"""This module shows tuning on a terminal: what will happen, how far it is, and the frontier. It measures nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from models.manifest import Manifest
from service.evaluation.host import machine
from service.evaluation.scenarios.figures import shown
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning.field import Candidate
from service.evaluation.tuning.halving import Round
from service.evaluation.tuning.objective import Slice
from service.evaluation.tuning.outcome import Outcome, Row, described

WIDTH: Final = 110
MOST_OUT: Final = 8
COLUMNS: Final = (
    "model", "precision", "seqs", "tokens", "threads", "replicas", "tok/s", "TTFT p95", "ITL p95", "e2e p95", "time",
)  # fmt: skip


class TuningScreen:
    """Hears the tuner. On a terminal a bar moves; elsewhere a line tells of each round. `quiet` shows nothing."""

    def __init__(self, console: Console, seconds: float, quiet: bool) -> None:
        self._console = Console(quiet=True) if quiet else console
        self._seconds = seconds
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self._console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._said = ""
        self._rounds = 0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task("", total=self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begins(
        self,
        manifest: Manifest,
        versions: list[Manifest],
        refused: dict[str, str],
        scenario: Scenario,
        beside: str,
    ) -> None:
        processor = machine.processor()
        self._line(f"tuning {manifest.name} on {processor.name}, {processor.usable_cores} cores")
        self._line(f"load: {described(scenario)}")
        self._line("versions: " + ", ".join(f"{each.reference} ({each.precision})" for each in versions))
        for reference, why in refused.items():
            self._line(f"{reference} is no candidate: {why}")
        if beside:
            self._line(Text.assemble(("warning", "yellow"), f": {beside}; the figures are those beside it"))

    def probing(self, candidate: Candidate) -> None:
        self._line(f"the present settings first: {candidate}")

    def planned(self, field: int, finest: int, rounds: int, seconds: float) -> None:
        self._rounds = rounds
        more = f"; a finer field of {finest} needs more --seconds" if field < finest else ""
        self._line(f"{field} candidates, {rounds} rounds, about {seconds:.0f} s{more}")

    def left_out(self, count: int) -> None:
        self._line(f"no time for {count} candidates: engines start slower than thought")

    def round_begins(self, number: int, left: int, plan: Round) -> None:
        passes = f"{plan.passes} passes of " if plan.passes > 1 else ""
        self._said = f"round {number} of {self._rounds}: {left} candidates, {passes}{plan.seconds:.1f} s each"
        if self._bar.disable:
            self._line(self._said)
        self._advance()

    def measured(self, candidate: Candidate, result: Slice) -> None:
        self._advance()

    def fell_out(self, candidate: Candidate, why: str) -> None:
        self._line(f"out: {candidate}: {why}")
        self._advance()

    def _advance(self) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=time.monotonic() - self._began, description=self._said)

    def _line(self, line: str | Text) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def print_outcome(outcome: Outcome, to: Console) -> None:
    """Prints the frontier, the present settings, who fell out, and the chosen candidate."""
    wide = to if to.is_terminal else Console(width=WIDTH)
    if outcome.rows:
        wide.print(_table(outcome))
    for candidate, why in list(outcome.out.items())[:MOST_OUT]:
        to.print(f"out: {candidate}: {why}", soft_wrap=True, highlight=False, markup=False)
    if len(outcome.out) > MOST_OUT:
        to.print(f"and {len(outcome.out) - MOST_OUT} more fell out", highlight=False)
    if outcome.passed_over:
        to.print(f"limits that only a server has, not judged here: {', '.join(outcome.passed_over)}", highlight=False)
    for line in _verdict(outcome):
        to.print(line, soft_wrap=True, highlight=False)


def _verdict(outcome: Outcome) -> Iterable[Text]:
    if outcome.chosen is None:
        return
    yield Text.assemble(("best", "green"), f": {outcome.chosen.candidate}")
    if outcome.chosen.candidate == outcome.present:
        yield Text("the present settings are the best of the field")
    elif outcome.gain is not None:
        what = "p95 of whole answers" if outcome.scenario.load.kind == "open" else "tokens a second"
        yield Text(f"{outcome.gain:.2f} times as good as the present settings, in {what}")
    if outcome.chosen.broken:
        names = ", ".join(outcome.chosen.broken)
        yield Text.assemble(("broken", "red"), f": {names}; no candidate that was compared last holds all limits")


def _table(outcome: Outcome) -> Table:
    table = Table(
        *COLUMNS, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title="frontier", title_justify="left"
    )
    rows = {row.candidate: row for row in outcome.frontier}
    beside = [row for row in outcome.rows if row.candidate == outcome.present]
    for row in [*outcome.frontier, *(() if outcome.present in rows else beside), *_chosen_apart(outcome, rows)]:
        is_best = outcome.chosen is not None and row.candidate == outcome.chosen.candidate
        name = " (best)" if is_best else " (present)" if row.candidate == outcome.present else ""
        table.add_row(*_cells(row, name), style="green" if is_best else None)
    return table


def _chosen_apart(outcome: Outcome, rows: dict[Candidate, Row]) -> list[Row]:
    """Returns the chosen row where the frontier does not have it: limits, or passes that were slow for all."""
    chosen = outcome.chosen
    return [chosen] if chosen and chosen.candidate not in rows and chosen.candidate != outcome.present else []


def _cells(row: Row, name: str) -> list[str]:
    each, figures = row.candidate, row.figures
    numbers = (each.max_num_seqs, each.max_num_batched_tokens, each.threads, each.replicas)
    latencies = [f"{shown(figures.get(f'{kind}_p95_ms'))} ms" for kind in ("ttft", "itl", "e2e")]
    rate = shown(figures.get("tokens_per_second"))
    return [each.reference + name, each.precision, *map(str, numbers), rate, *latencies, f"{row.seconds:.1f} s"]


def shown_outcome(outcome: Outcome, words: str, manifest: Manifest) -> dict[str, Any]:
    """Returns all of it for programs."""

    def row(each: Row) -> dict[str, Any]:
        return {
            "settings": each.candidate.variables(words, manifest.reference),
            "precision": each.candidate.precision,
            "figures": each.figures,
            "seconds": round(each.seconds, 3),
            "broken": list(each.broken),
        }

    return {
        "model": manifest.reference,
        "scenario": outcome.scenario.name,
        "scenario_digest": outcome.scenario.digest,
        "chosen": row(outcome.chosen) if outcome.chosen else None,
        "times_as_good": outcome.gain,
        "frontier": [row(each) for each in outcome.frontier],
        "candidates": [row(each) for each in outcome.rows],
        "out": [
            {"settings": each.variables(words, manifest.reference), "why": why} for each, why in outcome.out.items()
        ],
        "limits_not_judged": outcome.passed_over,
    }
