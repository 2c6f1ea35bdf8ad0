"""A transfer shows how far a download or a conversion is: a bar on a terminal, a line every few seconds in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LINE_SECONDS: Final = 5.0
DOWNLOADING: Final = "downloading"
_MEGABYTE: Final = 1e6


@contextmanager
def downloading(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Gives the watch of a download: (bytes here, bytes of all, the file on its way)."""
    if not console.is_terminal:
        yield Lines(console, DOWNLOADING).bytes
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as shown:
        task = shown.add_task(DOWNLOADING)

        def watch(done: int, total: int, name: str) -> None:
            shown.update(task, completed=done, total=total, description=f"{DOWNLOADING}: {name}")

        yield watch


@contextmanager
def working(console: Console, label: str) -> Iterator[Callable[[float, str], None]]:
    """Gives the progress of other work: (fraction of the whole, what is being done)."""
    if not console.is_terminal:
        yield Lines(console, label).fraction
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(label, total=1.0)
        yield lambda fraction, what: shown.update(task, completed=fraction, description=f"{label}: {what}")


class Lines:
    """Lines for a pipe, at most one every `LINE_SECONDS`."""

    def __init__(self, console: Console, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._label = label
        self._clock = clock
        self._started = self._said = clock()
        self._first: int | None = None

    def bytes(self, done: int, total: int, name: str) -> None:
        """The first call tells what was here before: it does not count as speed."""
        if self._first is None:
            self._first = done
        if self._is_time():
            rate = (done - self._first) / max(self._clock() - self._started, 1e-9)
            left = f", {left_of((total - done) / rate)} left" if rate > 0 else ""
            self._say(
                f"{name}, {done / _MEGABYTE:,.1f} of {total / _MEGABYTE:,.1f} MB, {rate / _MEGABYTE:.1f} MB/s{left}"
            )

    def fraction(self, fraction: float, what: str) -> None:
        if self._is_time():
            self._say(f"{what}, {fraction:.0%}")

    def _is_time(self) -> bool:
        now = self._clock()
        is_time = now - self._said >= LINE_SECONDS
        self._said = now if is_time else self._said
        return is_time

    def _say(self, text: str) -> None:
        self._console.print(f"{self._label}: {text}", soft_wrap=True, highlight=False, markup=False)


def left_of(seconds: float) -> str:
    """Returns a time as `40 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
