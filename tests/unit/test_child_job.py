"""A job that a command waits for: its progress, its result, its sentence, and an end without one."""

from __future__ import annotations

import os

import pytest

from models.errors import InvalidSource
from service.jobs import child

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
