"""`dosirak tune` with real engines: its file starts a server, Ctrl-C leaves nothing. Whether a full grid
agrees is measured by `python -m loadtest.tuning`, on a machine that does nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from loadtest.bench.running import free_port
from models.imports.importing import import_source
from models.repository.repository import Repository
from tests.checkpoints import save_llama
from tests.e2e.server import ROOT, command_of, python
from tests.waiting import block_until

SCENARIO = """
name = "tiny"
[load]
kind = "closed"
users = 3
seconds = 20
min_samples = 20
[[requests]]
route = "/v1/completions"
prompt_words = 2
max_new_tokens = 8
[limits]
failed_ratio = 0
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one version of a tiny model, and a load beside it."""
    base = tmp_path_factory.mktemp("tune")
    repository = Repository(base / "data")
    import_source(repository, str(save_llama(base / "source")), "tiny")
    repository.promote("tiny", "production", "1", "a test")
    (base / "load.toml").write_text(SCENARIO)
    return base


def tuning(base: Path, port: int, *words: str, model: str = "tiny") -> subprocess.Popen[str]:
    environment = {**os.environ, "DOSIRAK_DATA_DIR": str(base / "data"), "DOSIRAK_PORT": str(port)}
    files = ["--load", str(base / "load.toml"), "--out", str(base / "t.env")]
    command = python("-m", "service.cli", "tune", model, *files)
    return subprocess.Popen(
        [*command, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.nightly
def test_ctrl_c_shows_what_is_known_and_ends_every_engine(data: Path) -> None:
    (data / "t.env").unlink(missing_ok=True)
    process = tuning(data, free_port(), "--seconds", "200")
    family = psutil.Process(process.pid)
    block_until(lambda: len(_engines(family)) >= 2, 60)
    time.sleep(1)
    engines = _engines(family)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "interrupted" in said and "Traceback" not in said and not (data / "t.env").exists()
    assert not [each for each in engines if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def _engines(family: psutil.Process) -> list[psutil.Process]:
    return [each for each in family.children(recursive=True) if "service.engine.process.worker" in command_of(each)]
