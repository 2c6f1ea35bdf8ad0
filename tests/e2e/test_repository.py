"""The repository as those who run a server use it: swaps under load, jobs in their own processes, replicas."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import ROOT, Server, free_port, python, running
from tests.published import with_demo

MODELS = "/v1/repository/models"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: what is changed here must not reach other tests."""
    command = python("-m", "bentoml", "serve", "service.bento:Dosirak")
    port = free_port()
    data = with_demo(tmp_path_factory, "repository")
    log = data.with_name("log")
    # other tests share the cores: what is slower by chance must not be refused
    with running([*command, "--port", str(port)], data, log, port, DOSIRAK_GATE_DECODE_RATIO="0") as served:
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


def unload(client: httpx.Client, reference: str) -> None:
    """Returns when the version's process has ended."""
    client.delete(f"/v1/deployments/{reference}")
    deadline = time.monotonic() + 120
    while reference in deployed(client):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.nightly
def test_swaps_under_load_fail_nobody_and_mix_nothing(server: Server) -> None:
    command = python("-m", "loadtest.swaps", "--url", server.url, "--swaps", "2", "--streams", "4", "--unary", "4")
    shown = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "2 swaps" in shown.stdout and "0 failed, 0 mixed" in shown.stdout


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


@pytest.mark.nightly
def test_an_import_that_is_cancelled_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        source = str(ROOT / "models" / "demo" / "weights")
        job = client.post(f"{MODELS}/copy/versions", json={"source": source, "evaluate": "none"}).json()
        client.delete(f"/v1/jobs/{job['id']}")
        assert ended(client, job["id"])["state"] in ("cancelled", "succeeded")
        again = client.post(f"{MODELS}/copy/versions", json={"source": source, "evaluate": "none"}).json()
        done = ended(client, again["id"])
        assert done["state"] == "succeeded" and done["result"]["model"] == "copy"  # type: ignore[index]
        answer = client.post("/generate", json={"inputs": "hi", "model": "copy", "parameters": {"max_new_tokens": 2}})
        assert answer.status_code == 200
        assert not list((server.log.parent / "data" / "tmp").iterdir())


def test_a_version_answers_the_same_with_a_draft_model(server: Server) -> None:
    with server.client() as client:
        body = {"inputs": "hi", "model": "demo:1", "parameters": {"max_new_tokens": 24}}
        plain = client.post("/generate", json=body).json()["generated_text"]
        for reference in ("demo:1", "copy:1"):  # versions of one base share an engine
            unload(client, reference)
        assert client.post("/v1/deployments", json={"model": "demo:1", "draft": "demo:2"}).status_code == 202
        assert client.post("/generate", json=body).json()["generated_text"] == plain
        shown = deployed(client)["demo:1"]
        assert (shown["draft"], shown["state"]) == ("demo:2", "ready")
        refused = client.post("/v1/deployments", json={"model": "demo:1", "draft": "nobody"})
        assert refused.status_code == 404 and "nobody" in refused.json()["error"]
        unload(client, "demo:1")


@pytest.mark.nightly
def test_replicas_share_their_weights(server: Server) -> None:
    with server.client() as client:
        unload(client, "copy:1")
        assert client.post("/v1/deployments", json={"model": "copy:1", "replicas": 2}).status_code == 202
        body = {"inputs": "hi", "model": "copy:1", "parameters": {"max_new_tokens": 8}}
        texts = {client.post("/generate", json=body).json()["generated_text"] for _ in range(4)}
        assert len(texts) == 1
        replicas = deployed(client)["copy:1"]["replicas"]
        assert [each["state"] for each in replicas] == ["ready", "ready"]
        for replica in replicas:
            mapped = [each.path for each in psutil.Process(replica["pid"]).memory_maps(grouped=False)]
            assert any("memfd:dosirak-weights" in path for path in mapped)
        refused = client.post("/v1/deployments", json={"model": "copy:1", "replicas": 3})
        assert refused.status_code == 409
