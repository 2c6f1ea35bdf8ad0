"""A real server writes nothing that a client wrote: every process and every library in it is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import Server, python, running

SESSIONS = "/v1/sessions"
WORDS = [f"zq{number}wvx" for number in range(14)]


def ask(server: Server) -> None:
    prompt, chat, wrong, role, path, query, title, system, said, limit, field, value, model, search = WORDS
    with server.client() as client:
        short = {"max_new_tokens": 4}
        assert client.post("/generate", json={"inputs": prompt, "parameters": short}).status_code == 200
        messages = [{"role": "user", "content": chat}]
        body: dict[str, object] = {"messages": messages, "stream": True, "parameters": short}
        assert client.post("/generate", json=body).status_code == 200
        refused: list[dict[str, object]] = [
            {"inputs": "x", "parameters": {"temperature": wrong}},
            {"messages": [{"role": role, "content": "x"}]},
            {"inputs": "x", field: value},
            {"inputs": "x", "model": model},
        ]
        for body in refused:
            assert client.post("/generate", json=body).status_code in (404, 422)
        assert client.get(f"/{path}", params={"q": query}).status_code == 404
        made = client.post(SESSIONS, json={"title": title, "system": system}).json()["id"]
        body = {"session_id": made, "messages": [{"role": "user", "content": said}], "parameters": short}
        assert client.post("/generate", json=body).status_code == 200
        assert client.get(SESSIONS, params={"limit": limit}).status_code == 422
        assert client.get(SESSIONS, params={"query": search}).status_code == 200
        metrics = client.get("/metrics").text
        assert [word for word in WORDS if word in metrics] == []


def check(server: Server) -> None:
    written = server.log.read_text()
    assert [word for word in WORDS if word in written] == []
    assert written.count('"route":"/generate"') >= 7, "it logs what was asked of it"


@pytest.mark.nightly
def test_what_dosirak_serve_writes(served: Server) -> None:
    ask(served)
    check(served)


def test_what_the_bare_app_writes_at_level_debug(served: Server, data_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    command = python("-m", "uvicorn", "--factory", "service.app:create", "--port", str(port), "--log-level", "debug")
    with running(command, data_dir, tmp_path / "log", port, DOSIRAK_LOG_LEVEL="debug") as server:
        ask(server)
        check(server)
