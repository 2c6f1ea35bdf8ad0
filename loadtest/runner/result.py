"""A result is a run with its figures, its limits and all that says where they are from: `figures.json`.

This module also reads a result as a baseline, and refuses one that cannot be compared. It runs no load.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec

from loadtest.runner.address import Address
from loadtest.runner.judging import Check, Verdict
from service.evaluation.host import machine
from service.evaluation.scenarios.figures import Figures, NotMeasured
from service.evaluation.scenarios.scenario import Scenario

FILE: Final = "figures.json"
GIB: Final = 1 << 30
ROOT: Final = Path(__file__).parents[2]


class Host(msgspec.Struct, frozen=True):
    """The machine that ran the load. Two runs with another host are not compared."""

    processor: str
    architecture: str
    cores: int
    memory_gib: int

    def __str__(self) -> str:
        return f"{self.processor} ({self.architecture}), {self.cores} cores, {self.memory_gib} GiB"


class Baseline(msgspec.Struct, frozen=True):
    """What a result says of the run that it was compared with."""

    commit: str
    date: str
    figures: Figures


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is the machine that was under load, `window` the seconds of the run whose requests count.

    `monotonic_began` is second 0 on the machine's monotonic clock."""

    scenario: str
    description: str
    scenario_digest: str
    verdict: Verdict
    why: str
    host: Host
    target: str
    url: str
    server: dict[str, Any] | None
    commit: str
    command: str
    date: str
    window: tuple[float, float]
    requests: int
    counted: int
    generator_cores: float
    monotonic_began: float
    figures: Figures
    limits: list[Check]
    baseline: Baseline | None
    versions: dict[str, int]
    errors: dict[str, int]
    actions: list[tuple[float, str]]


def this_host() -> Host:
    processor = machine.processor()
    return Host(processor.name, processor.architecture, processor.usable_cores, round(machine.memory().total / GIB))


def commit() -> str:
    """Returns the commit in use, marked where files differ from it; "unknown" outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return shown.stdout.strip() or "unknown"


def write(directory: Path, result: Result) -> None:
    text = msgspec.json.format(msgspec.json.encode(result), indent=1)
    (directory / FILE).write_bytes(text + b"\n")


def read(directory: Path) -> Result:
    """Raises NotMeasured where the directory has no result."""
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=Result)
    except OSError as error:
        raise NotMeasured(f"{directory / FILE}: {error.strerror}; give the --out of an earlier run") from None
    except msgspec.DecodeError as error:
        raise NotMeasured(f"{directory / FILE} is no result of this command: {error}") from None


def read_baseline(directory: Path, scenario: Scenario, address: Address, host: Host) -> Baseline:
    """Raises NotMeasured for a run of another scenario or host, and for one that measured nothing."""
    before = read(directory)
    if before.scenario != scenario.name:
        raise NotMeasured(f"the baseline {directory} is of scenario {before.scenario}, this is {scenario.name}")
    if before.scenario_digest != scenario.digest:
        raise NotMeasured(
            f"the baseline {directory} is of another {scenario.name}: its load has changed; measure a new baseline"
        )
    if before.host != host:
        raise NotMeasured(f"the baseline {directory} was measured on another host, {before.host}; this is {host}")
    if before.target != address.machine:
        raise NotMeasured(f"the baseline {directory} is of another host, {before.target}; this is {address.machine}")
    if before.verdict == "not measured":
        raise NotMeasured(f"the baseline {directory} measured nothing: {before.why}")
    return Baseline(before.commit, before.date, before.figures)
