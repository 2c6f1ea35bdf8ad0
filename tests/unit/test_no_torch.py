"""Commands and jobs where torch is not installed, as in the image's target `api`: a sentence, not a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from models.imports.starter import demo_is_wanted
from models.repository.repository import Repository
from tests.versions import publish

ROOT = Path(__file__).parents[2]
TUNE = ("tune", "chat:1", "--load", "loadtest/scenarios/tune.toml")
HIDDEN = """
import importlib.abc, importlib.util, runpy, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else found(name, package)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run(module: str, *words: str, directory: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"DOSIRAK_DATA_DIR": str(directory), "PATH": "/usr/bin:/bin", "HOME": str(directory)}
    command = [sys.executable, "-c", HIDDEN, module, *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    publish(Repository(tmp_path), "weights", "chat")
    return tmp_path


@pytest.mark.parametrize("words", [("model", "quantize", "chat:1"), ("recall", "chat:1"), ("compare", "chat:1"), TUNE])
def test_a_command_that_needs_torch_says_so(directory: Path, words: tuple[str, ...]) -> None:
    done = run("service.cli", *words, directory=directory)
    assert done.returncode == 1 and "There is no engine here" in done.stdout, done.stdout + done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_a_command_that_needs_none_works(directory: Path) -> None:
    done = run("service.cli", "model", "list", directory=directory)
    assert done.returncode == 0 and "chat" in done.stdout, done.stderr[-2000:]


def test_a_job_that_needs_torch_fails_with_the_sentence(directory: Path) -> None:
    asked = {"model": "chat:1", "author": "me", "precision": "int8", "evaluate": "none"}
    done = run(
        "service.evaluation.jobs.worker",
        directory=directory,
        given=json.dumps({"kind": "quantize", "arguments": asked}),
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert "There is no engine here" in told["error"], told


def test_no_demo_model_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo_is_wanted(Repository(tmp_path))
    monkeypatch.setattr("models.imports.starter.find_spec", lambda name: None)
    assert not demo_is_wanted(Repository(tmp_path))
