"""Adapters as those who run a server use them: imported by job, served beside their base by one process, swapped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from models.imports.importing import import_source
from models.repository.repository import Repository
from tests.e2e.server import ROOT, Server, free_port, python, running
from tests.e2e.test_repository import MODELS, ended
from tests.golden.adapters import train

DEMO = ROOT / "models" / "demo" / "weights"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """meal:1, the demo model in bf16, with nothing else loaded at first."""
    directory = tmp_path_factory.mktemp("adapters")
    import_source(Repository(directory / "data"), str(DEMO), "meal")
    command, port = python("-m", "service.cli", "serve"), free_port()
    with running(command, directory / "data", directory / "log", port, DOSIRAK_DEFAULT_MODEL="meal:1") as served:
        yield served


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
    import_source(Repository(server.log.parent / "data"), str(second), "meal", adapter_of="meal:1")


def said(client: httpx.Client, model: str, tokens: int = 24) -> str:
    body = {"messages": [{"role": "user", "content": "안녕하세요"}], "model": model}
    response = client.post("/generate", json={**body, "parameters": {"max_new_tokens": tokens, "ignore_eos": True}})
    assert response.status_code == 200, response.text
    return str(response.json()["generated_text"])


def deployed(client: httpx.Client) -> dict[str, Any]:
    return {each["model"]: each for each in client.get("/v1/deployments").json()["data"]}


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


@pytest.mark.usefixtures("adapters")
def test_an_alias_moves_to_an_adapter_and_nobody_notices(server: Server) -> None:
    alias = f"{MODELS}/meal/aliases/canary"
    with server.client() as client, ThreadPoolExecutor(2) as pool:
        assert client.put(alias, json={"version": "1"}).status_code == 200
        expected = {version: said(client, f"meal:{version}") for version in ("1", "2")}
        asking = [pool.submit(lambda: [said(client, "meal@canary") for _ in range(15)]) for _ in range(2)]
        time.sleep(0.1)
        assert client.put(alias, json={"version": "2", "override": True, "reason": "a test"}).status_code == 200
        for answers in [task.result() for task in asking]:
            assert set(answers) <= set(expected.values()) and answers[-1] == expected["2"]
            assert answers == sorted(answers, key=answers.index), "once moved, it stays"
        assert len(server.engines()) == 1


@pytest.mark.usefixtures("adapters")
def test_the_last_to_leave_ends_the_process(server: Server) -> None:
    with server.client() as client:
        said(client, "meal:1")
        for model in list(deployed(client)):
            unload(client, model)
        deadline = time.monotonic() + 120
        while server.engines():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said(client, "meal:3")
        assert len(server.engines()) == 1


@pytest.mark.nightly
@pytest.mark.usefixtures("adapters")
def test_a_job_compares_an_adapter_with_its_base(server: Server) -> None:
    with server.client() as client:
        job = ended(client, client.post(f"{MODELS}/meal/versions/2/evaluate", json={}).json()["id"])
        assert job["state"] == "succeeded", job
        report = client.get(f"{MODELS}/meal/versions/2").json()["report"]
        assert report["compared"]["reference"] == "meal:1" and report["compared"]["kl"] > 0.01
