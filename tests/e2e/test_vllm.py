"""Everything that clients get from our own engine they get from vLLM: one server serves a version by the one, then by
the other, and the same calls find the same.

The version is in fp32, so that greedy answers are equal token for token; `tests/golden/test_vllm.py` compares bf16 and
int8. It has room for adapters, so vLLM compiles nothing here.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import psutil
import pytest

from loadtest.bench.running import free_port
from models.imports.importing import import_source
from models.imports.starter import WEIGHTS
from models.repository.repository import Repository
from tests.clients.outcomes import CLIENTS, GRAMMARS, STATES, Outcomes, is_refused
from tests.e2e.server import Server, python, running, stream, text_of
from tests.golden.adapters import train
from tests.tools import WITH_TOOLS
from tests.vllm_engines import missing

RANK, ALPHA = 8, 4
VLLM: Final = {"engine": "vllm", "engine_options": {"max_loras": 2, "max_lora_rank": RANK}}
START_SECONDS: Final = 900.0
TURNS: Final = 12
SAID: Final = ("비빔밥 두 개 주세요.", "얼마예요?", "What is in the kimchi box?", "하나 더 주세요.")
ADAPTER: Final = "spiced:1"
PLACES_TOOLS: Final = (
    "{{%- if tools or messages | selectattr('role', 'equalto', 'tool') | list %}}{}{{%- else %}}{}{{%- endif %}}"
)
"""The demo model's template, and another one for chats with tools."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(2 * START_SECONDS),
    pytest.mark.skipif(bool(missing()), reason=missing() or "vLLM is there"),
]


@dataclass
class Compared:
    """A server whose `demo:1` vLLM serves, and what was found while our own engine did. A client that cannot be had
    has the reason in place of its outcomes."""

    server: Server
    clients: dict[str, Outcomes | str] = field(default_factory=dict)
    adapted: list[str] = field(default_factory=list)
    chat: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    folder = tmp_path_factory.mktemp("vllm")
    source, data = folder / "demo", folder / "data"
    shutil.copytree(WEIGHTS, source)
    (template := source / "chat_template.jinja").write_text(PLACES_TOOLS.format(WITH_TOOLS, template.read_text()))
    repository = Repository(data)
    import_source(repository, str(source), "demo", precision="fp32")
    adapter = train(source, folder / "adapter", 1, r=RANK, lora_alpha=ALPHA)
    import_source(repository, str(adapter), "spiced", adapter_of="demo:1")
    settings: Any = {"DOSIRAK_DEFAULT_MODEL": "demo:1", "DOSIRAK_LOAD_TIMEOUT_SECONDS": str(START_SECONDS)}
    command = python("-m", "service.cli", "serve")
    with running(command, data, folder / "log", free_port(), DOSIRAK_KV_CACHE_BYTES=str(1 << 28), **settings) as server:
        found = Compared(server)
        with server.client() as client:
            found.adapted = [said(client, ADAPTER, text) for text in SAID]
            assert found.adapted != [said(client, "demo:1", text) for text in SAID]
        found.clients = {name: outcomes(name, server.url) for name in CLIENTS}
        found.chat = chat(server)
        with server.client() as client:
            for model in (ADAPTER, "demo:1"):
                unload(client, model)
            for model in ("demo:1", ADAPTER):
                assert client.post("/v1/deployments", json={"model": model, **VLLM}).status_code == 202
                until_ready(client, model)
        yield found


def outcomes(name: str, url: str) -> Outcomes | str:
    try:
        return asyncio.run(CLIENTS[name](url))  # type: ignore[arg-type]
    except pytest.skip.Exception as skipped:
        return str(skipped)


def deployed(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {each["model"]: each for each in client.get("/v1/deployments").json()["data"]}


def unload(client: httpx.Client, model: str) -> None:
    assert client.delete(f"/v1/deployments/{model}").status_code == 202
    deadline = time.monotonic() + 60
    while model in deployed(client):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def until_ready(client: httpx.Client, model: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (state := deployed(client)[model]["state"]) != "ready":
        assert state == "loading" and time.monotonic() < deadline, deployed(client)[model]
        time.sleep(0.5)


def said(client: httpx.Client, model: str, text: str, tokens: int = 24) -> str:
    body = {"messages": [{"role": "user", "content": text}], "model": model}
    answer = client.post("/generate", json={**body, "parameters": {"max_new_tokens": tokens, "ignore_eos": True}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generated_text"])


def chat(server: Server) -> list[dict[str, Any]]:
    """Has a chat of TURNS turns, each receipt compared with a recount of what is stored. Returns the answers."""
    answers = []
    with server.client() as client:
        session = client.post("/v1/sessions", json={}).json()["id"]
        for turn in range(TURNS):
            message = {"role": "user", "content": SAID[turn % len(SAID)]}
            body = {"session_id": session, "messages": [message], "parameters": {"max_new_tokens": 16}}
            sent = [*_stored(client, session), message]
            answer = client.post("/generate", json=body).json()
            recounted = client.post("/tokenize", json={"messages": sent}).json()["count"]
            receipt = answer["context"]
            assert recounted == receipt["used"] == sum(receipt["parts"].values()) == answer["usage"]["prompt_tokens"]
            assert receipt["counts"] == {"kept": 2 * turn + 1, "dropped": 0, "summarised": 0}
            answers.append(answer)
    return answers


def _stored(client: httpx.Client, session: str) -> list[dict[str, str]]:
    messages = client.get(f"/v1/sessions/{session}/messages").json()["data"]
    return [{"role": each["role"], "content": each["content"]} for each in messages]


def worker(server: Server) -> psutil.Process:
    [process] = server.children("service.engine.vllm.worker")
    return process


def test_it_is_vllm(compared: Compared) -> None:
    with compared.server.client() as client:
        shown = deployed(client)
    assert {model: each["engine"]["name"] for model, each in shown.items()} == {"demo:1": "vllm", ADAPTER: "vllm"}
    assert {each["replicas"][0]["pid"] for each in shown.values()} == {worker(compared.server).pid}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_finds_the_same(compared: Compared, name: str) -> None:
    """But for what vLLM refuses, by name and with the way out."""
    own, found = compared.clients[name], outcomes(name, compared.server.url)
    if isinstance(own, str) or isinstance(found, str):
        pytest.skip(str(own))
    assert found.keys() == own.keys() and own
    for call, outcome in found.items():
        if call in GRAMMARS | STATES:
            assert is_refused(outcome) and "vLLM" in outcome[2], (call, outcome)
            assert not is_refused(own[call]), call
        else:
            assert outcome == own[call], call


def test_a_chat_and_its_receipts(compared: Compared) -> None:
    found = chat(compared.server)
    assert [each["generated_text"] for each in found] == [each["generated_text"] for each in compared.chat]
    assert found[-1]["usage"]["prompt_tokens"] == compared.chat[-1]["usage"]["prompt_tokens"]


def test_an_adapter_beside_its_base(compared: Compared) -> None:
    with compared.server.client() as client, ThreadPoolExecutor(8) as pool:
        asked = [(model, text) for model in (ADAPTER, "demo:1") for text in SAID]
        alone = [said(client, *each) for each in asked]
        assert alone[: len(SAID)] == compared.adapted and alone[: len(SAID)] != alone[len(SAID) :]
        assert [*pool.map(lambda each: said(client, *each), asked)] == alone


def test_a_kill_in_mid_stream(compared: Compared) -> None:
    """Greedy answers go on as they were, the adapter's too; a sampled one goes on and says so; none hangs."""
    asked: list[dict[str, Any]] = [
        {"model": model, "messages": [{"role": "user", "content": text}], "parameters": {"max_new_tokens": 200}}
        for model in ("demo:1", ADAPTER)
        for text in SAID[:2]
    ]
    sampled = {**asked[0], "parameters": {"max_new_tokens": 200, "do_sample": True, "seed": 1}}
    for each in (*asked, sampled):
        each["parameters"]["ignore_eos"] = True
    server = compared.server
    with server.client(timeout=START_SECONDS) as client, ThreadPoolExecutor(8) as pool:
        alone = [text_of(stream(client, each)) for each in asked]
        running_streams = [pool.submit(stream, client, each) for each in (*asked, sampled)]
        _until_all_run(client, len(running_streams))
        before = worker(server)
        before.kill()
        ended = [each.result(START_SECONDS) for each in running_streams]
        assert worker(server).pid != before.pid
    assert [text_of(events) for events in ended[:-1]] == alone
    for events in ended:
        last: Any = events[-1]
        assert last["details"]["generated_tokens"] == 200 and last["timings"]["replayed"] == 1


def _until_all_run(client: httpx.Client, count: int) -> None:
    deadline = time.monotonic() + 60
    while _running(client.get("/metrics").text) < count:
        assert time.monotonic() < deadline, "the streams ended before all of them ran"
        time.sleep(0.02)


def _running(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith("dosirak_num_requests_running{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_the_last_call_unloads(compared: Compared) -> None:
    """What is left of Ollama's calls: its process ends."""
    process = worker(compared.server)
    with compared.server.client() as client:
        for model in (ADAPTER, "demo:1"):
            unload(client, model)
        gone, alive = psutil.wait_procs([process], 60)
    assert gone and not alive
