"""Sessions through the real service: what was acknowledged is there after a SIGKILL of everything; `dosirak chat`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from loadtest.crashes import run
from tests.e2e.server import ROOT, Server, python


async def test_acknowledged_turns_survive_kills(tmp_path: Path) -> None:
    acknowledged, wrong = await run(rounds=2, clients=6, seconds=2.0, folder=tmp_path)
    assert wrong == []
    assert acknowledged > 20


def test_chat_from_a_pipe(served: Server) -> None:
    said = "제 이름은 김무슬이에요.\n제 이름이 뭐예요?\n/history\n"
    command = python("-m", "service.cli", "chat", "--url", served.url, "--temperature", "0")
    ended = subprocess.run(command, input=said, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    answers, history = ended.stdout.splitlines()[:2], ended.stdout.splitlines()[2:]
    assert "김무슬" in answers[1]
    assert history[1::2] == [f"{2 * at + 2} assistant: {answer}" for at, answer in enumerate(answers)]
    assert ended.stderr == ""
