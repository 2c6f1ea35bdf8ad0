"""`dosirak tune`: what is refused before an engine starts, what is printed and what is written. Engines in process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from models.manifest import Manifest
from models.repository.repository import Repository
from service import cli
from service.cli.serve.checks import marked
from service.cli.settings import read_settings_file
from service.cli.tuning_screen import TuningScreen
from service.evaluation.tuning import engines, tuner
from service.evaluation.tuning.field import Candidate
from service.settings import Settings
from tests.fakes import InProcessEngine
from tests.tokenizers import write
from tests.versions import FACTS, lineage, write_weights

verb = import_module("service.cli.tune")
"""The module: `service.cli.tune` as an attribute is the command."""
LOAD = """
name = "small"
[load]
kind = "closed"
users = 3
seconds = 20
min_samples = 20
[[requests]]
route = "/generate_stream"
prompt_words = 3
max_new_tokens = 4
[limits]
failed_ratio = 0
"""


class Fast(InProcessEngine):
    """Steps as fast as its replicas say."""

    def __init__(self, chosen: Candidate) -> None:
        super().__init__(step_seconds=0.002 / chosen.replicas)


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = dict(os.environ)
    for name in [each for each in os.environ if each.startswith("DOSIRAK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOSIRAK_PORT", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.toml").write_text(LOAD)
    monkeypatch.setattr(verb, "is_dosirak", lambda settings: False)
    monkeypatch.setattr("service.evaluation.tuning.field.usable_cores", lambda: 2)
    monkeypatch.setattr(verb, "usable_cores", lambda: 2)
    monkeypatch.setattr(engines, "engine_of", lambda settings, repository, chosen, manifest: Fast(chosen))
    monkeypatch.setattr(tuner, "LEAST_SECONDS", 0.05)
    yield tmp_path / "data"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def version(data_dir: Path) -> Manifest:
    return published(Repository(data_dir), "one")


def published(repository: Repository, content: str, parent: Manifest | None = None, **facts: Any) -> Manifest:
    with repository.stage() as staged:
        (staged / "config.json").write_text("{}")
        write(staged)
        write_weights(staged, content)
        return repository.publish(staged, replace(FACTS, lineage=lineage(parent), **facts), "tiny")


def run(*words: str, load: str = "load.toml", seconds: str = "2") -> tuple[int, str]:
    asked = ["tune", "tiny", "--load", load, "--seconds", seconds, *words]
    ended = invoked(*asked)
    return ended.exit_code, " ".join(ended.output.split())


def invoked(*words: str) -> Result:
    """Again where the machine stood still in the few seconds that a test gives."""
    for _ in range(3):
        ended = CliRunner().invoke(cli.app, words, catch_exceptions=False)
        if ended.exit_code != 2 or "seconds are too few" not in " ".join(ended.output.split()):
            break
    return ended


def test_it_writes_what_a_server_reads(version: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    status, said = run()
    assert status == 0, said
    assert "tuning tiny on" in said and "load: small, closed loop of 3 users, digest" in said
    assert "candidates," in said and "rounds, about 2 s" in said and "round 1 of" in said
    assert "frontier" in said and "(best)" in said and "times as good as the present settings" in said
    assert "tuned.env is written: dosirak serve --settings tuned.env" in said
    lines = {name: line.value for name, line in read_settings_file(Path("tuned.env")).items()}
    assert lines.keys() == {
        f"DOSIRAK_{name}" for name in ("DEFAULT_MODEL", "MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS", "THREADS", "REPLICAS")
    }
    assert (lines["DOSIRAK_DEFAULT_MODEL"], lines["DOSIRAK_REPLICAS"], lines["DOSIRAK_THREADS"]) == ("tiny", "2", "1")
    text = Path("tuned.env").read_text()
    for word in (
        "# date   20",
        "# host   ",
        f"digest {version.digest}",
        "# load   small",
        "tokens_per_second",
        "dosirak 0",
    ):
        assert word in text, word


def test_json_has_every_candidate(version: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    ended = invoked("tune", "tiny:1", "--load", "load.toml", "--seconds", "2", "--json")
    shown = json.loads(ended.output)
    assert ended.exit_code == 0 and len(shown["candidates"]) >= 2 and shown["model"] == "tiny:1"
    assert shown["chosen"]["settings"]["DOSIRAK_REPLICAS"] == "2" and shown["times_as_good"] > 1
    assert shown["chosen"] in shown["candidates"] and all(each in shown["candidates"] for each in shown["frontier"])


def test_a_broken_limit_is_status_1_and_said_in_the_file(version: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    Path("load.toml").write_text(LOAD + "tokens_per_second = 1e8\nrefused_ratio = 0.5\n")
    status, said = run()
    assert status == 1 and "broken: tokens_per_second; no candidate" in said
    assert "limits that only a server has, not judged here: refused_ratio" in said
    assert "# BROKEN tokens_per_second: the limit is 1e+08" in Path("tuned.env").read_text()


def test_a_server_in_use_is_refused_unless_anyway(
    version: Manifest, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    with marked(data_dir) as free:
        assert free is None
        status, said = run()
        assert status == 2 and f"a server uses {data_dir}" in "".join(said) and "--anyway" in said
        assert not Path("tuned.env").exists()
        status, said = run("--anyway")
        assert status == 0 and "warning: a server uses" in said
        assert "# BESIDE another server" in Path("tuned.env").read_text()


def test_a_server_without_a_mark_is_seen_by_its_answer_or_its_lease(
    version: Manifest, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Repository(data_dir).lease(version):
        status, said = run()
        assert status == 2 and "another process uses tiny:1" in said and "--anyway" in said
    monkeypatch.setattr(verb, "is_dosirak", lambda settings: True)
    status, said = run()
    assert status == 2 and "a server answers at http://127.0.0.1:1" in said and "--anyway" in said


def test_too_few_seconds_say_how_many(version: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "LEAST_SECONDS", 9.0)
    status, said = run()
    assert status == 2 and "2 seconds are too few" in said and "--seconds" in said and not Path("tuned.env").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--load", "gone.toml"), "gone.toml: No such file or directory"),
        (("--out", "no/such/tuned.env"), "no/such/tuned.env cannot be written (No such file or directory)"),
        (("--out", "data"), "data cannot be written (it is a directory)"),
    ],
)
def test_files_are_looked_at_first(version: Manifest, words: tuple[str, ...], said: str) -> None:
    status, shown = run(*words)
    assert status == 2 and said in shown and "tuning" not in shown


def test_interrupted_is_status_130_and_writes_nothing(version: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    slices = iter(range(100))
    measured = TuningScreen.measured

    def interrupt(self: Any, chosen: Any, found: Any) -> None:
        measured(self, chosen, found)
        if next(slices) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(TuningScreen, "measured", interrupt)
    status, said = run()
    assert status == 130 and "interrupted: tuned.env is not written" in said and "frontier" in said
    assert not Path("tuned.env").exists()


def test_versions_that_the_gate_refuses_are_no_candidates(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(data_dir)
    first = published(repository, "one")
    published(repository, "two", parent=first, precision="int8")
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    monkeypatch.setenv("DOSIRAK_PROTECTED_ALIASES", "production")
    ended = invoked("tune", "tiny:1", "--load", "load.toml", "--seconds", "2")
    said = " ".join(ended.output.split())
    assert "tiny:2 is no candidate: it was never measured" in said and "versions: tiny:1 (bf16) " in said
    monkeypatch.delenv("DOSIRAK_PROTECTED_ALIASES")
    ended = invoked("tune", "tiny:1", "--load", "load.toml", "--seconds", "2")
    assert "versions: tiny:1 (bf16), tiny:2 (int8)" in " ".join(ended.output.split())


def test_the_settings_of_the_environment_are_the_present_ones(
    version: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "PROBE_ANSWERS", (4, 4))
    monkeypatch.setenv("DOSIRAK_MAX_NUM_SEQS", "33")
    monkeypatch.setenv("DOSIRAK_REPLICAS", "2")
    _, said = run()
    assert "the present settings first: tiny:1 bf16, 33 sequences, 2048 tokens, 2 x " in said
    assert Settings().max_num_seqs == 33
