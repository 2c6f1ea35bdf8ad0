"""`dosirak tune` with real engines: its file starts a server, Ctrl-C leaves nothing, a full grid agrees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from loadtest.tuning import LOAD, compared
from models.imports.importing import import_source
from models.repository.repository import Repository
from service.cli.settings_file import read_settings_file
from service.evaluation.tuning.field import GRAINS
from tests.checkpoints import save_llama
from tests.e2e.server import ROOT, command_of, free_port, python, running
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
def test_a_server_starts_with_what_was_written_and_keeps_tune_away(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOSIRAK_DEFAULT_MODEL")  # the file has it
    port, file = free_port(), data / "t.env"
    said, _ = (done := tuning(data, port, "--seconds", "90", "--json")).communicate(timeout=240)
    assert done.returncode == 0, said
    found = json.loads(said)
    assert found["chosen"]["figures"]["tokens_per_second"] > 0 and not found["out"]
    written = {name: line.value for name, line in read_settings_file(file).items()}
    assert written == found["chosen"]["settings"]
    command = python("-m", "service.cli", "serve", "--settings", str(file))
    with running(command, data / "data", tmp_path / "serve.log", port) as server:
        with server.client() as client:
            shown = client.get("/info").json()["settings"]
            deployed = client.get("/v1/deployments").json()["data"][0]
        for name, value in written.items():
            assert str(shown[name.removeprefix("DOSIRAK_").lower()]) == value
        assert len(deployed["replicas"]) == int(written["DOSIRAK_REPLICAS"])
        said, _ = (refused := tuning(data, port, "--seconds", "45")).communicate(timeout=120)
        assert refused.returncode == 2 and "--anyway" in said and "end it first" in said


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


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["demo", "wide"])
def test_within_5_percent_of_a_full_grid_in_a_quarter_of_its_time(model: str, tmp_path: Path) -> None:
    found = compared(Repository(tmp_path), model, LOAD, GRAINS[0], 10.0, 24)
    assert found.ratio >= 0.95, str(found)
    assert found.tune_seconds <= 0.25 * found.grid_seconds + 5, str(found)
