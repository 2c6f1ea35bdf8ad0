"""This module keeps what was measured of a host: memory read, products, and the time of a step beside its products.

A child process measures (`service.evaluation.host.measuring`), so that a crash of a kernel is a sentence here. The
result stays in the data directory, and `/info` shows it as long as it fits the host.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from models.repository.disk import durable
from service.environment import engine_environment
from service.evaluation.host.machine import Processor
from service.settings import Settings

FILE: Final = "measured.json"
SECONDS: Final = 60.0
"""The most that measuring may take, the imports of libraries included; measuring alone takes under 5 s."""


class CannotMeasure(Exception):
    """The child gave no figures; the message says why. `ended`: it ended by itself, and so would an engine."""

    def __init__(self, why: str, ended: bool) -> None:
        super().__init__(why)
        self.ended = ended


class EngineTimes(msgspec.Struct, frozen=True):
    """Seconds of a step beside its products. `step`: the engine's own, by the sequences that decode in it. `layer`: one
    layer's, whatever its width. `value`: of one row's element in one layer (`Shape.row_values`), by the step's
    rows."""

    step: dict[int, float]
    layer: float
    value: dict[int, float]


class Measured(msgspec.Struct, frozen=True):
    """One host's figures. `products` holds 1e9 operations a second by precision and number of rows. `kernels` is the
    instruction set of the native kernels in use; "" where torch operations serve, and `no_kernels` says why."""

    at: str
    processor: str
    threads: int
    torch: str
    kernels: str
    no_kernels: str
    cuda: bool
    memory_read_gb_s: float
    products: dict[str, dict[int, float]]
    engine: EngineTimes
    seconds: float


def measure(settings: Settings) -> Measured:
    """Measures this host with the threads and the environment of an engine. Raises CannotMeasure."""
    command = [sys.executable, "-m", "service.evaluation.host.measuring", str(settings.threads)]
    try:
        done = subprocess.run(command, env=engine_environment(), capture_output=True, timeout=SECONDS, check=False)
        return msgspec.json.decode(done.stdout, type=Measured)
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"it was not done after {SECONDS:.0f} s", ended=False) from None
    except OSError as error:
        raise CannotMeasure(str(error), ended=False) from None
    except msgspec.DecodeError:
        raise CannotMeasure(_ending(done), ended=True) from None


def _ending(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        return f"it was ended by {signal.Signals(-done.returncode).name}"
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"it ended with exit status {done.returncode}"


def keep(measured: Measured, directory: Path) -> None:
    """Puts the figures into the data directory. A directory that cannot be written, or is not there, stays as it is."""
    if directory.is_dir():
        with suppress(OSError):
            durable.replace(directory / FILE, msgspec.json.encode(measured))


def known(directory: Path, processor: Processor) -> Measured | None:
    """Returns the kept figures; None where there are none, or they are another processor's."""
    try:
        found = msgspec.json.decode((directory / FILE).read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.processor == processor.name else None
