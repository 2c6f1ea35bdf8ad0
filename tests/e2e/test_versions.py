"""Versions beside the demo model, imported by jobs and measured: adapters in their base's process, encoder-decoders."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from loadtest.bench.running import free_port
from models.imports.importing import import_source
from models.repository.repository import Repository
from tests.checkpoints import save_bart, save_t5
from tests.e2e.server import ROOT, Server, python, running, stream
from tests.golden.adapters import train
from tests.published import with_demo

MODELS = "/v1/repository/models"
DEMO = ROOT / "models" / "demo" / "weights"
PROMPTS = ("안녕", "translate: the lunch box is full", "한 줄 요약: " + "김밥 두 줄과 물 한 병. " * 3, "x")
NEW_TOKENS = 12
SAVES = {"t5": save_t5, "bart": save_bart}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With demo:1 and demo:2; meal:1, the demo model in bf16, is loaded first."""
    data = with_demo(tmp_path_factory, "versions")
    import_source(Repository(data), str(DEMO), "meal")
    # other tests share the cores: what is slower by chance must not be refused
    settings = {"DOSIRAK_DEFAULT_MODEL": "meal:1", "DOSIRAK_GATE_DECODE_RATIO": "0"}
    command = python("-m", "service.cli", "serve")
    with running(command, data, data.with_name("log"), free_port(), cwd=ROOT, **settings) as served:
        yield served


def ended(client: httpx.Client, id: str, seconds: float = 240) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        job: dict[str, object] = client.get(f"/v1/jobs/{id}").json()
        if job["state"] not in ("queued", "running"):
            return job
        time.sleep(0.1)
    raise AssertionError(f"the job did not end: {job}")


def deployed(client: httpx.Client) -> dict[str, Any]:
    return {each["model"]: each for each in client.get("/v1/deployments").json()["data"]}


@pytest.fixture(scope="module")
def adapters(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    """meal:2 by a job, meal:3 from another process."""
    first, second = (train(DEMO, tmp_path_factory.mktemp("peft"), seed, r=4 + seed) for seed in (1, 2))
    with server.client() as client:
        body = {"source": str(first), "adapter_of": "meal:1", "evaluate": "none"}
        job = ended(client, client.post(f"{MODELS}/meal/versions", json=body).json()["id"])
        assert job["state"] == "succeeded", job
        unknown = client.post(f"{MODELS}/meal/versions", json={**body, "adapter_of": "meal:9"})
        assert unknown.status_code == 404
    import_source(Repository(server.log.with_name("data")), str(second), "meal", adapter_of="meal:1")


def said(client: httpx.Client, model: str, tokens: int = 24) -> str:
    body = {"messages": [{"role": "user", "content": "안녕하세요"}], "model": model}
    response = client.post("/generate", json={**body, "parameters": {"max_new_tokens": tokens, "ignore_eos": True}})
    assert response.status_code == 200, response.text
    return str(response.json()["generated_text"])


def unload(client: httpx.Client, model: str) -> None:
    assert client.delete(f"/v1/deployments/{model}").status_code == 202
    deadline = time.monotonic() + 120
    while model in deployed(client):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.usefixtures("adapters")
def test_one_process_serves_a_base_and_its_adapters(server: Server) -> None:
    models = ["meal:1", "meal:2", "meal:3"]
    with server.client() as client, ThreadPoolExecutor(6) as pool:
        alone = {model: said(client, model) for model in models}
        assert len(set(alone.values())) == 3
        assert [*pool.map(lambda model: said(client, model), 4 * models)] == 4 * list(alone.values())
        assert {each["replicas"][0]["pid"] for each in deployed(client).values()} == {server.engines()[0].pid}
        assert len(server.engines()) == 1
        server.engines()[0].kill()
        assert {model: said(client, model) for model in models} == alone
        unload(client, "meal:2")
        assert {model: said(client, model) for model in ("meal:1", "meal:3")} == {
            model: alone[model] for model in ("meal:1", "meal:3")
        }
        assert said(client, "meal:2") == alone["meal:2"], "and it comes back"


Imported = Callable[[str], Path]


@pytest.fixture(scope="module")
def imported(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Imports the model of that name once; returns the checkpoint that it was imported from."""

    @functools.cache
    def get(name: str) -> Path:
        source = SAVES[name](tmp_path_factory.mktemp(name) / "source")
        body = {"source": str(source), "precision": "fp32", "evaluate": "none"}
        with server.client() as client:
            job = ended(client, client.post(f"{MODELS}/{name}/versions", json=body).json()["id"])
        assert job["state"] == "succeeded", job
        return source

    return get


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "forced"), [pytest.param("t5", [], marks=pytest.mark.nightly), ("bart", [65])])
def test_imported_and_served(server: Server, imported: Imported, name: str, forced: list[int]) -> None:
    source = imported(name)
    with server.client() as client:
        parameters = {"max_new_tokens": NEW_TOKENS, "details": True, "repetition_penalty": 3.0}

        def ask(prompt: str) -> dict[str, object]:
            body = {"inputs": prompt, "model": name, "parameters": parameters}
            return client.post("/generate", json=body).raise_for_status().json()  # type: ignore[no-any-return]

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, 4 * PROMPTS))
        want = [_generate(source, prompt, forced) for prompt in PROMPTS]
        for number, answer in enumerate(answers):
            assert [token["id"] for token in answer["details"]["tokens"]] == want[number % len(PROMPTS)]  # type: ignore[index]
        again = client.post("/generate", json={"inputs": PROMPTS[2], "model": name, "parameters": parameters}).json()
        length = len(PROMPTS[2].encode())
        assert again["usage"]["prompt_tokens"] == again["usage"]["cached_tokens"] == length
        assert again["context"]["parts"]["current"] == length and again["context"]["reserved_output"] == 0
        streamed: dict[str, object] = {"inputs": PROMPTS[0], "model": name, "parameters": parameters}
        told = [event["token"]["id"] for event in stream(client, streamed) if "token" in event]  # type: ignore[index]
        assert told == want[0]


@pytest.mark.nightly
def test_what_an_encoder_cannot_do_is_refused_by_name(server: Server, imported: Imported) -> None:
    imported("bart")
    with server.client() as client:

        def refused(status: int, code: str, route: str = "/v1/completions", **body: object) -> str:
            response = client.post(route, json={"model": "bart", **body})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (status, code), response.text
            return str(error["message"])

        assert "encoder" in refused(400, "unsupported_field", prompt="x", max_tokens=1, echo=True, logprobs=1)
        assert "window has 128" in refused(400, "context_length_exceeded", prompt="x" * 129, max_tokens=1)
        assert "lower max_tokens by 1" in refused(400, "context_length_exceeded", prompt="x", max_tokens=127)
        chat = [{"role": "user", "content": "hi"}]
        assert "chat template" in refused(400, "invalid_request", "/v1/chat/completions", messages=chat)
        full = client.post("/v1/completions", json={"model": "bart", "prompt": "x" * 128, "max_tokens": 126})
        assert full.json()["usage"]["completion_tokens"] == 126


@pytest.mark.nightly
def test_an_evaluation_beside_serving_passes_the_gate(server: Server) -> None:
    with server.client() as client:
        response = client.post(f"{MODELS}/demo/versions/2/evaluate", json={})
        assert response.status_code == 202
        job = ended(client, response.json()["id"])
        assert job["state"] == "succeeded", job
        report = client.get(f"{MODELS}/demo/versions/2").json()["report"]
        assert report["compared"]["reference"] == "demo:1" and report["compared"]["top1_agreement"] > 0.98
        assert report["compared"]["kl"] < 0.01 and len(report["recall"]) > 10
        assert all(rate > 0 for rate in report["speed"]["decode_tokens_per_second"].values())
        assert client.put(f"{MODELS}/demo/aliases/canary", json={"version": "2"}).status_code == 200


def _generate(source: Path, prompt: str, forced: list[int]) -> list[int]:
    """The library's greedy tokens, behind those that the decoder is made to begin with."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32, local_files_only=True)
    given = torch.tensor([Tokenizer.from_file(str(source / "tokenizer.json")).encode(prompt).ids])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=NEW_TOKENS + len(forced),
        do_sample=False,
        num_beams=1,
        repetition_penalty=3.0,
        eos_token_id=None,
    )
    tokens: list[int] = out[0, 1 + len(forced) :].tolist()
    return tokens
