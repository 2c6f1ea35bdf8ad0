"""These tests see what a new user sees at a terminal: the start, an answer that no log line runs into, a command that
can be typed, an end that says what it waits for, and one sentence where something is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import ROOT, Server, python, stream
from tests.e2e.test_serve import body
from tests.terminal import ANSI, CTRL_C, Terminal
from tests.waiting import alive, block_until

KEY = "a key of 25 letters or so"
SERVE = python("-m", "service.cli", "serve")
REQUEST = re.compile(r"\d\d:\d\d:\d\d  POST   /v1/chat/completions +200 +[\d,]+ ms  \d+\+\d+ tokens  demo:2")


@contextmanager
def at_a_terminal(data_dir: Path, port: int, cwd: Path = ROOT, **variables: str) -> Iterator[Terminal]:
    """`dosirak serve`, as typed."""
    given = {"DOSIRAK_DATA_DIR": str(data_dir), "DOSIRAK_PORT": str(port), "PYTHONPATH": str(cwd), **variables}
    given |= {name: given.get(name, "") for name in ("NO_COLOR", "FORCE_COLOR", "DOSIRAK_LOG_FORMAT")}
    terminal = Terminal(SERVE, cwd, given)
    try:
        yield terminal
    finally:
        family = psutil.Process(terminal.process.pid).children(recursive=True) if is_running(terminal) else []
        terminal.close()
        for each in family:
            if each.is_running():
                each.kill()


def is_running(terminal: Terminal) -> bool:
    return terminal.process.poll() is None


def command_of(terminal: Terminal) -> str:
    """The command that the start shows."""
    terminal.until("  curl ")
    block_until(lambda: bool([line for line in terminal.lines[:-1] if line.startswith("  curl ")]))
    return next(line for line in terminal.lines if line.startswith("  curl ")).strip()


def run(command: str, **variables: str) -> dict[str, object]:
    done = subprocess.run(
        command, shell=True, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def sensible(answer: dict[str, object]) -> bool:
    """The answer ends by itself, greets back, and repeats nothing for ever."""
    choice = answer["choices"][0]  # type: ignore[index]
    text = choice["message"]["content"]
    assert choice["finish_reason"] == "stop" and "안녕" in text, text
    return re.search(r"(.)\1\1", text) is None and text.rstrip()[-1] in ".!?~"


@contextmanager
def a_long_answer(url: str, key: str = "") -> Iterator[list[dict[str, object]]]:
    """A stream that goes on beside; its events are complete at exit."""
    events: list[dict[str, object]] = []
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=120, headers=headers) as client:
            try:
                events.extend(stream(client, body(max_new_tokens=1900)))
            except httpx.HTTPError:
                events.append({"error": "cut"})

    asking = threading.Thread(target=ask)
    asking.start()
    with httpx.Client(base_url=url, headers=headers) as client:
        block_until(lambda: client.get("/v1/deployments").json()["data"][0]["in_flight"] == 1)
    yield events
    asking.join(60)


def family_of(terminal: Terminal) -> list[psutil.Process]:
    return psutil.Process(terminal.process.pid).children(recursive=True)


def gone(family: list[psutil.Process]) -> Callable[[], bool]:
    return lambda: not alive(family)


def test_a_first_start_and_its_end(data_dir: Path, served: Server) -> None:
    port = free_port()
    with at_a_terminal(data_dir, port) as terminal:
        command = command_of(terminal)
        assert "dosirak  이름은 김무슬이에요." in terminal.lines, "no log line runs into it"
        assert f"ready at http://127.0.0.1:{port}" in terminal.shown
        assert f"uses {data_dir} too" in ANSI.sub("", terminal.shown), "as another server serves from it"
        assert command.startswith(f"curl http://127.0.0.1:{port}/v1/chat/completions -H") and "Bearer" not in command
        assert sensible(run(command))
        block_until(lambda: any(map(REQUEST.fullmatch, terminal.lines)))
        assert "\x1b[32m200" in terminal.shown
        family = family_of(terminal)
        with a_long_answer(f"http://127.0.0.1:{port}") as events:
            terminal.type(CTRL_C)
            terminal.until("waiting for 1 answer, at most 30 s; Ctrl-C again ends at once")
        assert terminal.wait() == 130
        assert events[-1].get("generated_text"), "it waited"
        block_until(gone(family))
        assert "Traceback" not in terminal.shown


@pytest.mark.nightly
def test_a_key_no_colours_and_an_end_at_once(data_dir: Path, served: Server) -> None:
    port = free_port()
    with at_a_terminal(data_dir, port, DOSIRAK_ADMIN_KEY=KEY, NO_COLOR="1") as terminal:
        command = command_of(terminal)
        assert KEY not in terminal.shown and "$DOSIRAK_ADMIN_KEY" in command
        assert sensible(run(command, DOSIRAK_ADMIN_KEY=KEY))
        assert "code" in run(command, DOSIRAK_ADMIN_KEY="another")["error"]  # type: ignore[operator]
        block_until(lambda: any(map(REQUEST.fullmatch, terminal.lines)))
        assert not re.search(r"\x1b\[[0-9;]*3[1-6]m", terminal.shown), "NO_COLOR"
        family = family_of(terminal)
        with a_long_answer(f"http://127.0.0.1:{port}", KEY) as events:
            terminal.type(CTRL_C)
            terminal.until("Ctrl-C again ends at once")
            terminal.type(CTRL_C)
            assert terminal.wait() == 130
            block_until(gone(family))
        assert events == [{"error": "cut"}]


def test_piped_the_answer_has_its_own_lines_and_the_log_is_json(served: Server) -> None:
    block_until(lambda: "  curl " in served.log.read_text())
    lines = served.log.read_text().splitlines()
    assert "dosirak  이름은 김무슬이에요." in lines
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"deployment_ready", "request"} <= {each["event"] for each in records}


@pytest.mark.parametrize(
    ("variables", "status", "told"),
    [
        ({"DOSIRAK_DEFAULT_MODEL": "nobody"}, 1, "There is no model nobody"),
        ({"DOSIRAK_PORT": "many"}, 2, "DOSIRAK_PORT"),
        ({"DOSIRAK_PROT": "3000"}, 2, "did you mean DOSIRAK_PORT?"),
        ({"DOSIRAK_GUARD_FILE": "/nonexistent"}, 1, "error: "),
        ({"DOSIRAK_DATA_DIR": "/dev/null/data"}, 1, "is, or lies in, a file"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_stops_a_start_is_one_sentence(
    served: Server, data_dir: Path, variables: dict[str, str], status: int, told: str
) -> None:
    environment = {**os.environ, "DOSIRAK_DATA_DIR": str(data_dir), "DOSIRAK_PORT": str(free_port()), **variables}
    ended = subprocess.run(SERVE, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert told in ended.stdout and "Traceback" not in ended.stdout + ended.stderr
    told_lines = [line for line in ended.stdout.splitlines() if line and not line.startswith("warning: another server")]
    assert len(told_lines) == 1


@pytest.mark.nightly
def test_a_demo_model_that_cannot_be_published_ends_the_start(tmp_path: Path) -> None:
    """No file may be as large as its weights."""
    limited = ["bash", "-c", 'ulimit -f 2048; exec "$@"', "bash", *SERVE]
    environment = {**os.environ, "DOSIRAK_DATA_DIR": str(tmp_path), "DOSIRAK_PORT": str(free_port())}
    ended = subprocess.run(limited, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "the first models could not be published: " in ended.stderr
    assert "error: there is no default model: the lines above say why" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr


def test_sigterm_ends_it_quietly(data_dir: Path, served: Server) -> None:
    with at_a_terminal(data_dir, free_port()) as terminal:
        command_of(terminal)
        terminal.process.terminate()
        assert terminal.wait() == 0
        assert "Ctrl-C again" not in terminal.shown and "Traceback" not in terminal.shown
