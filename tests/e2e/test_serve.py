"""A new user's first minutes: one command, the README's requests with the answers that it shows, and a service that
keeps its promises from outside.

In the shown answers, "…" stands for what is left out. Times differ from machine to machine: a number with a fraction
matches every number.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import ROOT, Server, python, running, said, stream, text_of
from tests.waiting import alive, block_until

MIB = 1024 * 1024
CHAT = {"messages": [{"role": "user", "content": "안녕하세요! 오늘 뭐가 맛있어요?"}]}
PORT: Final = "localhost:3000"
TWICE: Final = b"POST / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n"
"""A request of two hosts."""
FRACTION: Final = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def body(**parameters: object) -> dict[str, object]:
    return {**CHAT, "parameters": {"max_new_tokens": 48, "ignore_eos": True, **parameters}}


def test_start_ends_with_one_real_answer(served: Server) -> None:
    block_until(lambda: "ready at" in served.log.read_text())
    shown = served.log.read_text()
    assert "tokens at" in shown and "curl http://127.0.0.1" in shown
    assert "Traceback" not in shown


def test_the_demo_model_is_published_in_two_versions(served: Server, data_dir: Path) -> None:
    with served.client() as client:
        names = {model["id"] for model in client.get("/v1/models").json()["data"]}
        serving = client.get("/v1/deployments").json()["data"]
    assert {"demo:1", "demo:2"} <= names
    assert (serving[0]["model"], serving[0]["precision"], serving[0]["state"]) == ("demo:2", "int8", "ready")
    listed = subprocess.run(
        python("-m", "bentoml", "models", "list", "-o", "json"),
        env={"BENTOML_HOME": str(data_dir), "BENTOML_DO_NOT_TRACK": "true", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "demo:1" in listed.stdout and "demo:2" in listed.stdout


def test_api_process_is_small_and_has_no_torch(served: Server) -> None:
    with served.client() as client:
        client.post("/generate", json=body()).raise_for_status()
    api = served.api()
    assert not [each.path for each in api.memory_maps() if "torch" in each.path]
    assert api.memory_info().rss <= 200 * MIB


def test_its_connections_have_limits(served: Server) -> None:
    """tests/api/test_connections.py has each of them."""
    assert said(served, b"") == b""
    assert said(served, b"GET /livez HT").startswith(b"HTTP/1.1 408")
    assert said(served, TWICE).startswith(b"HTTP/1.1 400")
    with served.client() as client:
        shown = client.get("/metrics").text
    assert 'dosirak_http_connections_closed_total{reason="header_timeout"} 2.0' in shown


@pytest.mark.parametrize("model", [pytest.param("demo:1", marks=pytest.mark.nightly), "demo:2"])
def test_streamed_and_unary_answers_are_the_same(served: Server, model: str) -> None:
    with served.client() as client:
        for seed in (1, 2, 3):
            asked = {**body(temperature=1.0, seed=seed), "model": model}
            unary = client.post("/generate", json=asked).json()
            events = stream(client, asked)
            assert text_of(events) == events[-1]["generated_text"] == unary["generated_text"]
            assert unary["model"] == model and unary["usage"]["completion_tokens"] == 48


def test_a_vanished_client_frees_its_blocks(served: Server) -> None:
    with served.client() as client, served.client() as leaver:

        def left() -> float:
            shown = re.findall(r'request_success_total{finish_reason="abort".* (\S+)', client.get("/metrics").text)
            return sum(map(float, shown))

        before = left()
        with leaver.stream("POST", "/generate_stream", json=body(max_new_tokens=1500)) as response:
            next(response.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            leaver.post("/generate", json=body(max_new_tokens=1500, n=4), timeout=0.05)

        def idle() -> bool:
            replica = client.get("/v1/deployments").json()["data"][0]["replicas"][0]
            blocks = replica["kv_blocks"]
            return bool(replica["running"] == 0 and blocks["free"] + blocks["cached"] == blocks["total"])

        block_until(idle)
        assert left() > before


def test_sigterm_finishes_what_runs_and_leaves_no_process(data_dir: Path, served: Server, tmp_path: Path) -> None:
    """A second server on the same data: its start publishes nothing and its end cuts nothing."""
    with running(python("-m", "service.cli", "serve"), data_dir, tmp_path / "log", free_port()) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        events: list[dict[str, object]] = []

        def ask() -> None:
            with server.client() as client:
                events.extend(stream(client, body(max_new_tokens=300)))

        asking = threading.Thread(target=ask)
        asking.start()
        with server.client() as client:
            block_until(lambda: _running(client.get("/metrics").text) == 1)
        server.process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert server.process.wait(60) == 0
        assert events and events[-1]["generated_text"] is not None
        assert not alive(family)


def test_until_its_answers_end_a_server_answers(data_dir: Path, served: Server, tmp_path: Path) -> None:
    """Newcomers are refused with Retry-After, and what the drain cuts ends by an error event, not within one."""
    command = python("-m", "service.cli", "serve")
    with running(command, data_dir, tmp_path / "log", free_port(), DOSIRAK_DRAIN_SECONDS="2") as server:
        streams: list[str] = []

        def ask() -> None:
            asked = body(max_new_tokens=1900)
            with server.client() as client:
                streams.append(client.post("/generate_stream", json=asked).text)

        asking = [threading.Thread(target=ask) for _ in range(8)]
        for each in asking:
            each.start()
        with server.client() as client:
            block_until(lambda: "num_requests_running" in (text := client.get("/metrics").text) and _running(text) == 8)
        server.process.send_signal(signal.SIGTERM)
        block_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
        assert httpx.get(f"{server.url}/livez").status_code == 200
        refused = httpx.post(f"{server.url}/generate", json=body())
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        for each in asking:
            each.join(60)
        assert server.process.wait(60) == 0
        assert len(streams) == 8
        for text in streams:
            assert text.endswith("\n\n") and "event: error" in text[-400:], text[-400:]


def _running(metrics: str) -> float:
    lines = (line for line in metrics.splitlines() if line.startswith("dosirak_num_requests_running{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("-m", "bentoml", "serve"), id="bentoml"),
        pytest.param(
            ("-m", "uvicorn", "--factory", "service.app:create", "--port", "PORT", "--no-access-log"),
            id="uvicorn",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_other_ways_to_start(command: tuple[str, ...], data_dir: Path, served: Server, tmp_path: Path) -> None:
    port = free_port()
    arguments = [str(port) if part == "PORT" else part for part in command]
    with running(python(*arguments), data_dir, tmp_path / "log", port) as server, server.client() as client:
        answer = client.post("/generate", json=body()).json()
        assert answer["model"] == "demo:2" and answer["usage"]["completion_tokens"] == 48
        assert client.get("/livez").status_code == 200
        assert "uvicorn" in command or said(server, TWICE).startswith(b"HTTP/1.1 400")


def test_an_open_address_without_a_key_is_refused() -> None:
    environment = {"DOSIRAK_HOST": "0.0.0.0", "PATH": "", "HOME": "/nonexistent"}
    ended = subprocess.run(
        python("-m", "service.cli", "serve"), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "DOSIRAK_ADMIN_KEY" in ended.stdout


@dataclass(frozen=True)
class Shown:
    """One command of a document, and what the document shows as its output."""

    document: str
    command: str
    output: str

    def __str__(self) -> str:
        return f"{self.document}: {self.command[:60]}"


def shown(document: str) -> list[Shown]:
    """The commands of a document's code blocks: each begins with "$ " and ends where its quotes are closed."""
    found = []
    for block in re.findall(r"```\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(n for n in range(1, len(lines) + 1) if "\n".join(lines[:n]).count("'") % 2 == 0)
            found.append(Shown(document, "\n".join(lines[:end]), "\n".join(lines[end:])))
    return found


REQUESTS: Final = [
    each for name in ("README.md", "README.ko.md") for each in shown(name) if each.command.startswith("curl")
]


def compact(text: str) -> str:
    return FRACTION.sub("#", re.sub(r"\s+", "", text))


def test_each_readme_shows_three_requests() -> None:
    assert [each.document for each in REQUESTS] == ["README.md"] * 3 + ["README.ko.md"] * 3


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_of_the_readme_gets_the_answer_that_it_shows(request_: Shown, served: Server) -> None:
    assert PORT in request_.command
    command = request_.command.replace(f"http://{PORT}", served.url).replace(PORT, served.url)
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    answer = compact(ran.stdout)
    for piece in filter(None, compact(request_.output).split("…")):
        assert piece in answer, f"{piece}\nis not in the rest of the answer to\n{command}\n{ran.stdout}"
        answer = answer[answer.index(piece) + len(piece) :]
