"""A job that a command waits for: its progress, its result, its sentence, and an end without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from models.errors import InvalidSource
from service.evaluation.jobs import child

FAKE = "tests.fake_job"


def test_result_and_progress() -> None:
    seen: list[tuple[float, str]] = []
    done = child.run("import", {}, os.environ, lambda *step: seen.append(step), FAKE)
    assert done == {"model": "demo", "version": "1"}
    assert seen == [(0.5, "half way")]


def test_its_sentence_is_raised() -> None:
    with pytest.raises(InvalidSource, match="its weights are odd"):
        child.run("import", {"error": "its weights are odd"}, os.environ, worker=FAKE)


def test_an_end_without_a_sentence() -> None:
    with pytest.raises(InvalidSource, match="process of the import ended with status 7"):
        child.run("import", {"exit": 7}, os.environ, worker=FAKE)


def test_a_person_who_waits_is_served_at_the_priority_of_the_command() -> None:
    """The server's own jobs stand back behind its answers; beside a busy machine they hardly run."""
    source = "import os, sys\nfrom unittest import mock\nfrom service.evaluation.jobs import worker\n"
    source += "with mock.patch.object(worker, 'run', lambda *_: {'nice': os.nice(0)}): worker.main()"
    nices = []
    for job in ('{"kind": "import", "arguments": {}, "awaited": true}', '{"kind": "import", "arguments": {}}'):
        command = [sys.executable, "-c", source]
        shown = subprocess.run(command, input=job, capture_output=True, text=True, check=True).stdout
        nices.append(json.loads(shown)["result"]["nice"])
    assert nices == [os.nice(0), min(19, os.nice(0) + 10)]
