"""The wheel in an empty environment: `pip install`, then `dosirak serve` from a directory without the sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import running
from tests.wheel import ROOT, built_wheel

TORCH = "torch==2.13.0"
ASSET = re.compile(r'(?:src|href)="([^":]+\.(?:js|json|css|svg))"')
IMPORT = re.compile(r'from "([^"]+)"')


def empty_environment(folder: Path) -> Path:
    """A virtual environment with pip and nothing else; its `bin`."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin"


def install(environment: Path, wheel: Path) -> None:
    """Without PYTHONPATH, where pip would find the sources and take them for the wheel."""
    pip = [str(environment / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, TORCH], cwd=environment, env=known, check=True)
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], cwd=environment, env=known, check=True)


def loads(client: httpx.Client, address: str, seen: set[str]) -> None:
    """The asset is there, and so is everything that it imports."""
    if address in seen:
        return
    seen.add(address)
    answer = client.get(address)
    assert answer.status_code == 200, address
    if address.endswith(".js"):
        for each in IMPORT.findall(answer.text):
            loads(client, str(httpx.URL(address).join(each)), seen)


@pytest.mark.nightly
def test_the_wheel_serves_the_ui(tmp_path: Path) -> None:
    environment = empty_environment(tmp_path / "environment")
    install(environment, built_wheel(tmp_path / "sources"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    log = tmp_path / "serve.log"
    command = [str(environment / "dosirak"), "serve", "demo"]
    with (
        running(command, tmp_path / "data", log, free_port(), elsewhere, PYTHONPATH="") as server,
        server.client() as client,
    ):
        for screen in ("models", "models/demo", "models/demo/versions/2", "playground", "sessions", "live", "jobs"):
            page = client.get(f"/ui/{screen}")
            assert page.status_code == 200, page.text
            seen: set[str] = set()
            for asset in ASSET.findall(page.text):
                loads(client, str(page.url.join(asset)), seen)
            assert any(each.endswith(".js") for each in seen) and any(each.endswith(".css") for each in seen), seen
        answer = client.post("/generate", json={"inputs": "안녕하세요", "parameters": {"max_new_tokens": 8}})
        assert answer.status_code == 200 and answer.json()["generated_text"], answer.text
