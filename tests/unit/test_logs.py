"""The log: JSON where it is piped, one readable line a record on a terminal, colours only there."""

from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from service.environment import child_environment, colours_wanted
from service.observability.logs import LogLines, configure_logging
from service.settings import Settings

REQUEST: dict[str, Any] = {
    "event": "request",
    "timestamp": "14:08:00",
    "level": "info",
    "request_id": "9dfaf851cee942fd",
    "route": "/generate",
    "method": "POST",
    "status": 200,
    "seconds": 0.033552,
}
WORDS = "a user's words"
FAILING = f"""
import sys
from service.engine.process.loop import run_process

def prepare():
    try:
        raise KeyError("{WORDS}")
    except KeyError as error:
        raise ValueError("{WORDS}") from error

sys.exit(run_process(prepare, sys.argv))
"""
ANSWERED = {**REQUEST, "model": "demo:2", "prompt_tokens": 24, "completion_tokens": 8, "digest": "16b0a1b0fcc0"}


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """The tests' own log is as before."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**before)
    root.handlers = handlers
    root.setLevel(level)


def line(record: dict[str, Any], colours: bool = False) -> str:
    return LogLines(colours)(None, "info", dict(record))


def test_a_request_is_one_line_with_its_columns() -> None:
    assert line(ANSWERED) == "14:08:00  POST   /generate               200       34 ms  24+8 tokens  demo:2"
    refused = {**REQUEST, "status": 404, "route": None, "method": "GET", "code": "not_found"}
    assert line(refused) == "14:08:00  GET    (no route)              404       34 ms  not_found"


def test_an_event_is_its_facts_and_a_level_that_matters() -> None:
    record = {"event": "deployment_ready", "level": "info", "timestamp": "1", "model": "demo:2", "reason": None}
    assert line(record) == "1  deployment_ready  model=demo:2"
    record = {"event": "background_task_failed", "level": "warning", "timestamp": "1", "why": "no luck\n"}
    assert line(record) == "1  warning  background_task_failed  why='no luck\\n'"


def test_a_value_cannot_move_the_cursor() -> None:
    assert "\x1b" not in line({"event": "e", "level": "info", "model": "\x1b[2J"})


def test_an_exception_follows_its_line() -> None:
    assert line({"event": "e", "level": "error", "exception": "Traceback\nx"}).splitlines()[1:] == ["Traceback", "x"]


def test_a_job_that_fails_tells_its_log_no_words() -> None:
    job = json.dumps({"kind": WORDS, "arguments": {}}).encode()
    command = [sys.executable, "-m", "service.evaluation.jobs.worker"]
    ended = subprocess.run(command, input=job, capture_output=True, timeout=60, check=True)
    assert WORDS in json.loads(ended.stdout)["error"], "the client gets the message"
    told = ended.stderr.decode()
    assert WORDS not in told and "Traceback" in told and told.endswith("builtins.KeyError\n")


def test_an_engine_that_fails_tells_its_log_no_words() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", FAILING, str(theirs.fileno())]
        ended = subprocess.run(command, capture_output=True, timeout=60, pass_fds=[theirs.fileno()])
        assert ended.returncode == 1 and WORDS.encode() in ours.recv(4096), "the server gets the message"
    told = ended.stderr.decode()
    assert WORDS not in told and told.count("Traceback") == 2 and told.endswith("builtins.ValueError\n")


def test_colours_say_how_it_went() -> None:
    for status, colour in ((200, "\x1b[32m"), (404, "\x1b[33m"), (503, "\x1b[31m")):
        assert f"{colour}{status}\x1b[0m" in line({**REQUEST, "status": status}, colours=True)
    assert "\x1b" not in line(ANSWERED)


@pytest.mark.parametrize(
    ("variables", "terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_who_gets_colours(
    variables: dict[str, str], terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert colours_wanted(terminal) is wanted


def written(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, log_format: Any) -> list[str]:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has put its own there
    configure_logging(Settings(log_format=log_format))
    structlog.get_logger().info("deployment_ready", model="demo:2")
    logging.getLogger("a.library").warning("it says %s", "so\u2028\x85\u2029")
    try:
        raise RuntimeError(WORDS)
    except RuntimeError:
        structlog.get_logger().exception("request_failed")
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(("stream", "log_format"), [(io.StringIO, "auto"), (FakeTerminal, "json")])
def test_json_where_it_is_piped_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], log_format: str
) -> None:
    records = [json.loads(each) for each in written(monkeypatch, stream(), log_format)]
    assert [each["event"] for each in records] == ["deployment_ready", "it says so\u2028\x85\u2029", "request_failed"]
    assert records[0]["timestamp"].endswith("Z") and "RuntimeError" in records[2]["exception"]


def test_a_log_on_a_full_disk_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dosirak serve 2> log` on a disk that is full: requests and background tasks log at their ends."""
    full = Path("/dev/full").open("w")  # noqa: SIM115 - its end fails as well
    monkeypatch.setattr("sys.stderr", full)
    configure_logging(Settings(log_format="json"))
    for _ in range(1000):
        structlog.get_logger().info("deployment_ready", model="demo:2")
    with pytest.raises(OSError, match="No space"):
        full.close()


@pytest.mark.parametrize(("stream", "log_format"), [(FakeTerminal, "auto"), (io.StringIO, "console")])
def test_lines_for_people_on_a_terminal_or_where_asked_for(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], log_format: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    lines = written(monkeypatch, stream(), log_format)
    assert "deployment_ready" in lines[0] and lines[0].endswith("model=demo:2")
    assert "it says so" in lines[1] and "warning" in lines[1]
    assert lines[-1].endswith("RuntimeError") and WORDS not in "\n".join(lines)
    assert ("\x1b" in lines[0]) == (stream is FakeTerminal)


def test_a_child_whose_lines_are_shown_on_a_terminal_writes_them_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    given = child_environment(Settings(), for_terminal=True)
    assert (given["DOSIRAK_LOG_FORMAT"], given["FORCE_COLOR"]) == ("console", "1")
    assert "DOSIRAK_LOG_FORMAT" not in child_environment(Settings(log_format="json"), for_terminal=True)
    assert "FORCE_COLOR" not in child_environment(Settings())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "FORCE_COLOR" not in child_environment(Settings(), for_terminal=True)
