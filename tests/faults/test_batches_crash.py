"""The whole server is killed twice in the middle of a batch: every line is in the output exactly once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest import batches
from loadtest.bench.running import free_port
from tests.e2e.server import ROOT

LINES = 240
SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
import uvicorn
from service.generation.batches import worker
from service.generation.batches.journal import Journal
from service.storage.sessions import batches
from service.tasks import BackgroundTasks
from tests.fake_service import serving

batches.LEASE_SECONDS, worker.LOST_SECONDS, worker.RENEW_SECONDS, worker.IDLE_SECONDS = 0.8, 0.5, 0.1, 0.1
append = Journal.append


def append_then_die(journal, entries):
    append(journal, entries)
    if journal.count(succeeded=True) >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)


Journal.append = append_then_die


async def main():
    async with serving(Path(sys.argv[1]), engine={"step_seconds": 0.03}, log_level="error") as world:
        world.app.state.service.batch_worker.start(BackgroundTasks())
        config = uvicorn.Config(world.app, port=int(sys.argv[2]), log_level="error", lifespan="off")
        await uvicorn.Server(config).serve()


asyncio.run(main())
"""


class Service:
    """A server of its own process. It kills itself when its journal has `lines` answers: whoever watches from outside
    may be too slow for that on a busy machine."""

    def __init__(self, directory: Path, lines: int) -> None:
        self.port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        self._command = [sys.executable, "-c", SERVER, str(directory), str(self.port)]
        self.start(lines)

    def start(self, lines: int) -> None:
        self._process = subprocess.Popen([*self._command, str(lines)], cwd=ROOT)
        until = time.monotonic() + 60
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.client.get("/livez")
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server did not start")

    def died(self) -> bool:
        """Waits for the death. Returns False for any other end."""
        return self._process.wait(60) == -signal.SIGKILL

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def completed(self, id: str) -> dict[str, Any]:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found: dict[str, Any] = self.client.get(f"/v1/batches/{id}").json()
            if found["status"] == "completed":
                return found
            time.sleep(0.02)
        raise AssertionError(found)


@pytest.mark.parametrize(
    "endpoint",
    [
        batches.ENDPOINT,
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("/v1/embeddings", "/v1/responses")),
    ],
)
def test_killed_twice(tmp_path: Path, endpoint: str) -> None:
    service = Service(tmp_path, LINES // 3)
    try:
        lines = [
            {"custom_id": f"{n}", "method": "POST", "url": endpoint, "body": body(n, endpoint)} for n in range(LINES)
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        form: dict[str, Any] = {"files": {"file": ("in.jsonl", data)}, "data": {"purpose": "batch"}}
        file = service.client.post("/v1/files", **form).json()["id"]
        sent = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}
        id = service.client.post("/v1/batches", json=sent).json()["id"]
        for next_death in (2 * LINES // 3, sys.maxsize):
            assert service.died()
            [journal] = (tmp_path / "batches").iterdir()
            with journal.open("ab") as torn:
                torn.write(journal.read_bytes()[:30])  # what a crash of the machine leaves
            service.start(next_death)
        done = service.completed(id)
        assert done["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        text = service.client.get(f"/v1/files/{done['output_file_id']}/content").text
        outputs = [json.loads(line) for line in text.splitlines()]
        assert batches.wrong_lines(outputs, LINES) == []
        for each in outputs[::60]:
            alone = service.client.post(endpoint, json=body(int(each["custom_id"]), endpoint)).json()
            same = {batches.ENDPOINT: "choices", "/v1/embeddings": "data"}.get(endpoint, "usage")
            assert each["response"]["body"][same] == alone[same]
            if endpoint == "/v1/responses":
                stored = service.client.get(f"{endpoint}/{each['response']['body']['id']}").json()
                assert stored["output"] == each["response"]["body"]["output"]
    finally:
        service.kill()


def body(n: int, endpoint: str = batches.ENDPOINT) -> dict[str, Any]:
    if endpoint == "/v1/embeddings":
        return {"input": [f"text {n}", "another"]}
    if endpoint == "/v1/responses":
        return {"input": f"text {n}", "max_output_tokens": 16}
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 1, "seed": n}


def test_the_checker_sees_what_is_wrong() -> None:
    whole = [{"custom_id": f"{n}", "response": {"status_code": 200}} for n in range(3)]
    assert batches.wrong_lines(whole, 3) == []
    assert batches.wrong_lines(whole[:2], 3) == ["line 2 is there 0 times"]
    assert batches.wrong_lines([*whole, whole[0]], 3) == ["line 0 is there 2 times"]
    assert batches.wrong_lines([*whole[:2], {"custom_id": "2", "response": None}], 3) == ["line 2 was not answered"]


@pytest.mark.nightly
async def test_a_real_service_killed_twice(tmp_path: Path) -> None:
    options = batches.arguments(["--lines", "200", "--rounds", "0"])
    assert await batches.run(options, tmp_path / "data") == []
