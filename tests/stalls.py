"""This module runs a command on a machine that stands still for moments: it stops processes below the command.

    python -m tests.stalls make test

Every few seconds it stops a random process, with or without all below that one, for 0.3 to 2.5 s. A test must hold
then: it waits for what it wants, and its limits are longer than a stall. A command's own status is returned.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Final

import psutil

PAUSES: Final = (0.2, 4.0)
"""Seconds between two stalls, from and to."""
STALLS: Final = (0.3, 0.6, 1.2, 2.5)
SHELLS: Final = ("make", "sh", "bash")
"""They only wait for others."""


@contextmanager
def stopped(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Within the block these processes stand still, as far as they have not ended."""
    hit = list[psutil.Process]()
    try:
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()
                hit.append(process)
        yield
    finally:
        for process in hit:
            with suppress(psutil.Error):
                process.resume()


def chosen(below: psutil.Process, draw: Random) -> list[psutil.Process]:
    """Returns a process below this one, in half of the draws with all below it; nothing where there is none."""
    try:
        tree = [each for each in below.children(recursive=True) if each.name() not in SHELLS]
        if not tree:
            return []
        one = draw.choice(tree)
        return [one, *one.children(recursive=True)] if draw.random() < 0.5 else [one]
    except psutil.Error:
        return []


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is stopped goes on then, too
    draw, count = Random(), 0
    with subprocess.Popen(command) as running:
        while running.poll() is None:
            time.sleep(draw.uniform(*PAUSES))
            if processes := chosen(psutil.Process(running.pid), draw):
                with stopped(processes):
                    time.sleep(draw.choice(STALLS))
                count += 1
    print(f"{count} stalls", file=sys.stderr)
    return running.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
