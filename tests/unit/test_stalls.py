"""Stalls stop processes below a command, and no process stays stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from random import Random

import psutil
import pytest

from tests import stalls
from tests.waiting import block_until

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[psutil.Process]:
    """A process with one below it."""
    with subprocess.Popen([sys.executable, "-c", FAMILY]) as parent:
        process = psutil.Process(parent.pid)
        block_until(process.children)
        [child] = process.children()
        yield process
        child.kill()
        parent.kill()


def test_what_is_stopped_goes_on(family: psutil.Process) -> None:
    both = [family, *family.children()]
    with stalls.stopped(both):
        block_until(lambda: [each.status() for each in both] == [psutil.STATUS_STOPPED] * 2)
    block_until(lambda: psutil.STATUS_STOPPED not in [each.status() for each in both])


def test_every_process_below_is_chosen_alone_and_with_its_own(family: psutil.Process) -> None:
    draw, [child] = Random(1), family.children()
    found = [{each.pid for each in stalls.chosen(psutil.Process(), draw)} for _ in range(200)]
    assert {family.pid} in found and {child.pid} in found and {family.pid, child.pid} in found
    assert stalls.chosen(child, draw) == [], "nothing is below it"


def test_a_commands_status_is_returned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(stalls, "PAUSES", (0.0, 0.05))
    monkeypatch.setattr(stalls, "STALLS", (0.01,))
    below = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import time; time.sleep(1)']) + 3)"
    )
    assert stalls.main([sys.executable, "-c", below]) == 3
    assert int(capsys.readouterr().err.split()[0]) > 0
