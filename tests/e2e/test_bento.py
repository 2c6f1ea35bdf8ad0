"""The bento: what `bentoml build` puts into it, and that it serves BentoML's client and ours from its own sources."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import bentoml
import httpx
import pytest
import yaml
from bentoml.exceptions import BentoMLException

from loadtest.bench.running import free_port
from service.api.bento.image import DATA
from tests.e2e.bento import Bento, build, containerize, environment, steps
from tests.e2e.server import ROOT, Server, python, running
from tests.published import with_demo

KEY = "a key for the tests"
KERNELS = "service/engine/runner/native/built"
PROMPT = "제 이름은 김무슬이에요."
UNINSTALLED = """
import importlib.metadata as metadata
known = metadata.distribution
def distribution(name):
    if name == "dosirak":
        raise metadata.PackageNotFoundError(name)
    return known(name)
metadata.distribution = distribution
"""
EVALUATION = """
import os, sys
sys.path.insert(0, os.getcwd())
from service.evaluation import evaluate as evaluation
from service.evaluation.evaluate import evaluate
from service.evaluation.planning import EFFORTS, Extent
from service.settings import Settings
from models.repository.repository import Repository
assert evaluation.__file__.startswith(os.getcwd()), evaluation.__file__
EFFORTS["quick"] = Extent(1, 256, 1, 1, 0.2)
settings = Settings()
repository = Repository(settings.data_dir)
report = evaluate(settings, repository, repository.get("demo", "2"))
print(report.compared.reference, len(report.recall), *report.tools)
"""


@pytest.fixture(scope="module")
def bento(tmp_path_factory: pytest.TempPathFactory) -> Bento:
    return build(with_demo(tmp_path_factory, "bentoml"))


@pytest.fixture(scope="module")
def served(bento: Bento, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a key, and where BentoML is told to: not at the address and port that Dosirak's own settings name."""
    directory, port = tmp_path_factory.mktemp("served"), free_port()
    command = python("-m", "bentoml", "serve", bento.tag, "--port", str(port))
    variables = environment(bento.home, BENTOML_HOST="127.0.0.1", DOSIRAK_ADMIN_KEY=KEY, PYTHONPATH="")
    variables |= {"DOSIRAK_HOST": "127.0.0.2", "DOSIRAK_PORT": str(free_port())}
    with running(command, directory / "data", directory / "serve.log", port, cwd=directory, **variables) as server:
        yield server


@pytest.fixture
def client(served: Server) -> Iterator[bentoml.SyncHTTPClient]:
    with bentoml.SyncHTTPClient(served.url, token=KEY) as made:
        yield made


def test_it_carries_sources_and_names_its_model(bento: Bento) -> None:
    described = yaml.safe_load((bento.path / "bento.yaml").read_text())
    assert [each["tag"] for each in described["models"]] == ["demo:2"]
    assert sorted(path.name for path in (bento.path / "src").iterdir()) == [
        "LICENSE",
        "README.md",
        "bentofile.yaml",
        "models",
        "pyproject.toml",
        "requirements.txt",
        "service",
    ]
    assert not list(bento.path.rglob("*.so")) and not list(bento.path.rglob("*.pyc"))


def test_its_image_compiles_the_kernels_and_installs_nothing_that_tests(bento: Bento) -> None:
    lines = (bento.path / "env" / "docker" / "Dockerfile").read_text().splitlines()
    installs = next(at for at, line in enumerate(lines) if "pip install -r" in line)
    copies = next(at for at, line in enumerate(lines) if "./src/service/engine/runner/native" in line)
    compiles = lines.index("RUN python src/service/engine/runner/native/build.py --strict")
    assert copies < installs < compiles and any("g++" in line for line in lines[:installs])
    assert {"ARG BENTOML_HOST=0.0.0.0", f"ARG DOSIRAK_DATA_DIR={DATA}"} <= set(lines)
    assert f"RUN install -d -o bentoml -g bentoml {DATA}" in lines, "a volume there belongs to the user of the image"
    installed = (bento.path / "env" / "python" / "requirements.txt").read_text()
    assert "torch==" in installed and not [name for name in ("pytest", "mypy", "locust") if name in installed]


def test_bentomls_client_gets_an_answer(client: bentoml.SyncHTTPClient, served: Server) -> None:
    answer = client.generate(prompt=PROMPT, max_new_tokens=8, parameters={"details": True})
    ours = httpx.post(
        f"{served.url}/generate",
        json={"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "details": True}},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=60,
    ).json()
    assert answer["model"] == ours["model"] == "demo:2"
    assert answer["generated_text"] == ours["generated_text"] and answer["details"]["generated_tokens"] <= 8
    assert client.generate(PROMPT, max_new_tokens=8)["generated_text"] == ours["generated_text"]
    chat = [{"role": "user", "content": PROMPT}]
    assert client.chat(messages=chat, max_new_tokens=16)["generated_text"]
    assert client.chat(messages=chat, model="demo:2", max_new_tokens=1)["model"] == "demo:2", "as the UI shows it"


def test_the_ui_is_served_behind_the_key(served: Server) -> None:
    """As in the bento's image: the pages and their files are in its sources, and one key opens them."""
    with httpx.Client(base_url=served.url) as browser:
        refused = browser.get("/ui/models")
        assert refused.status_code == 401 and "<h1>Sign in</h1>" in refused.text
        led = browser.post("/ui/sign-in", data={"key": KEY, "path": "models"})
        assert (led.status_code, led.headers["location"]) == (303, "./models")
        page = browser.get("/ui/models")
        script = re.search(r'src="\./(static/[^"]+)"', page.text)
        assert page.status_code == 200 and script is not None
        assert browser.get(f"/ui/{script[1]}").headers["content-type"].startswith("text/javascript")


def test_what_the_routes_refuse_is_refused_with_their_words(client: bentoml.SyncHTTPClient, served: Server) -> None:
    with pytest.raises(BentoMLException, match="temperature"):
        client.generate(prompt=PROMPT, temperature=-1.0)
    with pytest.raises(BentoMLException, match="nobody"):
        client.generate(prompt=PROMPT, model="nobody")
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        for wrong, word in (
            ({"prompt": PROMPT, "no_such_field": 1}, "no_such_field"),
            ({"prompt": PROMPT, "seed": 1, "parameters": {"seed": 2}}, "twice"),
            ({}, "prompt"),
        ):
            refused = http.post("/bento/generate", json=wrong)
            assert refused.status_code == 400 and word in refused.text
        wrong_number = http.post("/bento/generate", json={"prompt": PROMPT, "max_new_tokens": 0})
        assert wrong_number.status_code == 422 and "max_new_tokens" in wrong_number.json()["error"]
        assert wrong_number.headers["x-request-id"]
        answered = http.post("/bento/generate", json={"prompt": PROMPT, "max_new_tokens": 1})
        assert answered.headers["x-model-version"] == "demo:2" and answered.headers["x-context-truncated"] == "false"


def test_a_refusal_shows_no_word_of_the_prompt_in_the_log(served: Server) -> None:
    secret = "unheard-of-word"
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        for wrong in (
            json.dumps({"prompt": [secret]}),
            json.dumps({"prompt": "a", "unknown": secret}),
            json.dumps({"messages": secret}),
            f'{{"prompt": "{secret}',
        ):
            for route in ("/bento/generate", "/bento/chat"):
                refused = http.post(route, content=wrong, headers={"Content-Type": "application/json"})
                assert refused.status_code == 400
    assert "Exception on /bento/" in served.log.read_text(), "BentoML does log it"
    assert secret not in served.log.read_text()


def test_bodies_are_bounded_as_elsewhere(served: Server) -> None:
    body = json.dumps({"prompt": "a" * 2**20}).encode()
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        for content in (body, iter([body[:1000], body[1000:]])):
            refused = http.post("/bento/generate", content=content, headers={"Content-Type": "application/json"})
            assert refused.status_code == 413 and refused.json()["code"] == "too_large"


def test_a_caller_who_hangs_up_is_heard(served: Server) -> None:
    body = {"prompt": PROMPT, "max_new_tokens": 1500, "parameters": {"ignore_eos": True}}
    with pytest.raises(httpx.ReadTimeout):
        headers = {"Authorization": f"Bearer {KEY}"}
        httpx.post(f"{served.url}/bento/generate", json=body, headers=headers, timeout=1.0)
    deadline = time.monotonic() + 60
    while '"status":499' not in served.log.read_text().replace(" ", ""):
        assert time.monotonic() < deadline, served.log.read_text()[-2000:]
        time.sleep(0.1)


def test_its_routes_need_the_key(served: Server) -> None:
    for path in ("/schema.json", "/bento/generate", "/generate", "/healthz"):
        assert httpx.post(f"{served.url}{path}", json={"prompt": PROMPT, "inputs": PROMPT}).status_code == 401
    with pytest.raises(BentoMLException):
        bentoml.SyncHTTPClient(served.url).generate(prompt=PROMPT)
    body = {"name": "shop", "scopes": ["generate"]}
    made = httpx.post(f"{served.url}/v1/keys", json=body, headers={"Authorization": f"Bearer {KEY}"}).json()
    bearer = {"Authorization": f"Bearer {made['key']}"}
    assert httpx.post(f"{served.url}/bento/generate", json={"prompt": PROMPT}, headers=bearer).status_code == 200
    assert httpx.get(f"{served.url}/schema.json", headers=bearer).status_code == 200


def test_a_path_with_a_line_feed_is_the_apps(served: Server) -> None:
    for path in ("/v1/sessions/a%0Ab/regenerate", "/v1/models/%0A", "/%0A"):
        headers = {"Authorization": f"Bearer {KEY}"}
        refused = httpx.post(f"{served.url}{path}", headers=headers, json={})
        assert refused.is_client_error and refused.json()["error"], refused.text
        assert httpx.post(f"{served.url}{path}", json={}).status_code == 401


def test_every_process_runs_the_bentos_sources(served: Server, bento: Bento) -> None:
    sources = bento.path / "src"
    for process in (served.api(), *served.engines()):
        assert Path(process.cwd()) == sources


@pytest.mark.nightly
def test_evaluation_needs_nothing_but_the_sources(bento: Bento) -> None:
    """Nor an installed package of this name. The kernels are those that its image would compile."""
    sources = bento.path / "src"
    if (ROOT / KERNELS).is_dir():
        shutil.copytree(ROOT / KERNELS, sources / KERNELS)
    found = subprocess.run(
        python("-c", UNINSTALLED + EVALUATION),
        cwd=sources,
        env=environment(bento.home, DOSIRAK_DATA_DIR=str(bento.home)),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    reference, cells, *tools = found.stdout.split()
    assert (reference, cells) == ("demo:1", "38") and "dosirak" in tools


def test_containerize_hands_docker_the_model_and_every_step(bento: Bento, tmp_path: Path) -> None:
    context = containerize(bento, tmp_path / "context")
    stored, copied = bento.home / "models" / "demo" / "2", context / "models" / "demo" / "2"
    assert sorted(path.name for path in copied.iterdir()) == sorted(path.name for path in stored.iterdir())
    assert [step for step in steps(context) if "python src/" in step] == [
        "python src/service/engine/runner/native/build.py --strict"
    ]
