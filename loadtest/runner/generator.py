"""This module watches the load generator itself, this process: the cores that it takes, and how late its timers are.

Both are of the load's seconds alone: while the last answers are waited for, a generator has little to do. The module
knows no request.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from gevent import sleep
from gevent.event import Event

from service.evaluation.scenarios.figures import NotMeasured, percentile

BUSY_CORES: Final = 0.9
"""A generator that takes more of its core measures itself."""
LATE_MS: Final = 250.0
"""A generator whose timers are later (p99) sends late and notes arrivals late."""
TICK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Generator:
    """What the process took: `cores` is its processor time over the watched time, `late_ms` the p99 of its timers."""

    cores: float
    late_ms: float

    def check(self) -> None:
        """Raises NotMeasured where the times of the run are the generator's, not the server's."""
        if self.cores > BUSY_CORES:
            raise NotMeasured(f"the load generator itself was busy ({self.cores:.2f} cores): lower rate or users")
        if self.late_ms > LATE_MS:
            raise NotMeasured(
                f"the load generator itself was late (timers by {self.late_ms:.0f} ms at p99, at most {LATE_MS:.0f}): "
                "give it a core that nothing else wants, or lower rate or users"
            )


def watch(seconds: float, over: Event) -> Generator:
    """Watches for `seconds`, or until `over`."""
    began, used = time.perf_counter(), _processor_seconds()
    late, now = list[float](), began
    while now < began + seconds and not over.is_set():
        due = now + TICK_SECONDS
        sleep(TICK_SECONDS)
        now = time.perf_counter()
        late.append((now - due) * 1e3)
    return Generator((_processor_seconds() - used) / ((now - began) or 1.0), percentile(late, 99) or 0.0)


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system
