"""`dosirak serve MODEL`, up to the server: words find their version, or make it; nothing is fetched or made twice."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadtest.bench.running import free_port
from models.checkpoint.fingerprint import fingerprint
from models.errors import RepositoryError
from models.progress import Progress, silent
from models.repository.repository import Repository
from service import cli
from service.cli import needs
from service.cli.serve.checks import CannotStart
from service.evaluation.jobs import child, worker
from service.settings import Settings
from tests import gguf_files
from tests.checkpoints import save_llama
from tests.fake_hub import FakeHub, reached
from tests.reports import beside, report
from tests.versions import publish

TINY = "org/Tiny-Chat"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("hub") / "llama")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        reached(hub, tmp_path / "cache", monkeypatch)
        yield hub


class Start:
    """`dosirak serve` without the server: `run` returns what it printed, and `served` is the model that it would
    serve."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.served = ""
        self.jobs: list[str] = []
        self.efforts: list[str] = []
        self.figures: dict[str, dict[str, Any]] = {}

    def run(self, *words: str) -> str:
        result = CliRunner().invoke(cli.app, ["serve", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *words: str) -> str:
        with pytest.raises(RepositoryError) as caught:
            self.run(*words)
        return str(caught.value)

    def serve(self, settings: Settings, console: Console, then: Callable[[Console], None] | None = None) -> int:
        self.served = self.repository.resolve(settings.default_model).reference
        if then is not None:
            then(console)
        return 0

    def job(
        self, kind: str, arguments: Mapping[str, object], env: Mapping[str, str], progress: Progress = silent
    ) -> dict[str, Any]:
        """In this process, which has torch already. Measuring takes no time: `figures` has what it finds, by
        precision."""
        self.jobs.append(kind)
        if kind == "evaluate":
            self.efforts.append(str(arguments["effort"]))
            return self._measure(str(arguments["model"]))
        asked = json.loads(json.dumps(arguments))  # as it would reach the other process
        return worker.run(kind, asked, Settings(), progress)

    def _measure(self, reference: str) -> dict[str, Any]:
        manifest = self.repository.resolve(reference)
        parent = self.repository.resolve(manifest.lineage.parent or reference)
        made = report(manifest, beside(parent, **self.figures.get(manifest.precision, {})))
        self.repository.put_report(manifest, msgspec.structs.replace(made, effort=self.efforts[-1]))
        return {}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return made(tmp_path, monkeypatch)


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOSIRAK_PORT", str(free_port()))
    monkeypatch.setenv("LOGNAME", "kim")
    for patience in ("_WAIT_SECONDS", "_MOVED_SECONDS"):
        monkeypatch.setattr(f"service.cli.serve.command.{patience}", 60.0)
    start = Start(Repository(tmp_path / "data"))
    monkeypatch.setattr("service.cli.serve.serving.serve", start.serve)
    monkeypatch.setattr(child, "run", start.job)
    return start


def test_the_first_start_makes_the_version(start: Start, hub: FakeHub, llama: Path) -> None:
    commit = hub.push(TINY, llama)
    shown = start.run(TINY)
    assert (start.served, start.jobs) == ("tiny-chat:2", ["needs", "import", "evaluate"])
    assert "to download" in shown and "memory to serve" in shown and "are free" in shown
    assert "serving tiny-chat:2 (int8" in shown and "not measured yet" not in shown
    assert "tiny-chat:2 (int8) is measured beside tiny-chat:1: KL divergence 0.0004 nats, at most 0.02; top-1" in shown
    assert start.efforts == ["check"]
    version = start.repository.get("tiny-chat", "2")
    assert (version.lineage.source, version.lineage.author) == (f"{TINY}@{commit}", "kim")
    entry = start.repository.history("tiny-chat", "production")[-1]
    assert (entry.version, entry.reason, entry.actor) == ("2", f"dosirak serve {TINY}", "kim")
    assert not list(start.repository.layout.data_dir.glob("downloads/*"))


def test_the_second_start_fetches_nothing(start: Start, hub: FakeHub, llama: Path) -> None:
    """It looks, beside the start, whether the branch has moved. With a commit there is nothing to look for."""
    commit = hub.push(TINY, llama)
    start.run(TINY)
    start.jobs.clear()
    hub.requests.clear()
    assert "moved" not in start.run(TINY)
    assert (start.served, start.jobs) == ("tiny-chat:2", [])
    assert [each.path for each in hub.requests] == [f"/api/models/{TINY}/revision/main"]
    hub.requests.clear()
    start.run(f"{TINY}@{commit}")
    assert start.served == "tiny-chat:2" and hub.requests == []


def test_a_gguf_repository_is_served_as_one_of_its_files(
    start: Start, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists the files and takes the usual one; a later start finds it without a network."""
    source, repo = save_llama(tmp_path / "source", width=64), tmp_path / "repo"
    repo.mkdir()
    for name in ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"):
        gguf_files.of_checkpoint(source, repo / name, gguf_files.q8_0)
    commit = hub.push("org/Tiny-GGUF", repo)
    shown = start.run("org/Tiny-GGUF")
    assert "2 GGUF models (tiny-Q4_K_M.gguf, tiny-Q8_0.gguf), of which tiny-Q4_K_M.gguf is taken" in shown
    assert (start.served, start.repository.get("tiny-gguf", "2").precision) == ("tiny-gguf:2", "file")
    start.run("org/Tiny-GGUF:Q8_0")
    other = start.repository.get("tiny-gguf", "4")
    assert (start.served, other.lineage.source) == ("tiny-gguf:4", f"org/Tiny-GGUF:Q8_0@{commit}")
    assert "choose one, as org/Tiny-GGUF:Q4_K_M" in start.refused("org/Tiny-GGUF:Q2_K")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start.run("org/Tiny-GGUF:Q8_0")
    assert start.served == "tiny-gguf:4"


def test_the_second_start_needs_no_network(
    start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(TINY, llama)
    start.run(TINY)
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start.run(TINY)
    assert start.served == "tiny-chat:2" and hub.requests == []
    assert "HF_HUB_OFFLINE is set" in start.refused(f"{TINY}@other")


def test_a_branch_that_moved_is_said_and_fetched_on_demand(
    start: Start, hub: FakeHub, llama: Path, tmp_path: Path
) -> None:
    first = hub.push(TINY, llama)
    start.run(TINY)
    second = hub.push(TINY, save_llama(tmp_path / "next", width=64))
    shown = start.run(TINY)
    assert start.served == "tiny-chat:2"
    assert f"main has moved from {first[:7]} to {second[:7]}" in shown and f"dosirak serve {TINY} --pull" in shown
    start.run(TINY, "--pull")
    assert start.served == "tiny-chat:4"
    assert "moved" not in start.run(TINY) and start.served == "tiny-chat:4"
    start.run(f"{TINY}@{first}")
    assert start.served == "tiny-chat:2"


def test_a_rollback_is_kept(start: Start, hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    hub.push(TINY, llama)
    start.run(TINY)
    hub.push(TINY, save_llama(tmp_path / "next", width=64))
    start.run(TINY, "--pull")
    start.repository.rollback("tiny-chat", "production", "worse answers")
    shown = start.run(TINY)
    assert start.served == "tiny-chat:2" and "dosirak serve tiny-chat:4 serves the other" in shown
    start.run("tiny-chat:4")
    assert start.served == "tiny-chat:4"
    assert start.repository.resolve("tiny-chat").version == "2"


def test_precisions(start: Start, hub: FakeHub, llama: Path) -> None:
    """A precision that is named is served; without one, what production has."""
    hub.push(TINY, llama)
    start.run(TINY, "--precision", "bf16")
    assert (start.served, start.jobs) == ("tiny-chat:1", ["needs", "import"])
    start.jobs.clear()
    start.run(TINY)
    assert (start.served, start.jobs) == ("tiny-chat:1", [])
    hub.requests.clear()
    start.run(TINY, "--precision", "int8")
    assert (start.served, start.jobs, hub.weights_sent()) == ("tiny-chat:2", ["quantize", "evaluate"], [])
    start.run(TINY)
    assert start.served == "tiny-chat:2"
    start.run(TINY, "--precision", "bf16")
    assert start.served == "tiny-chat:1"


BABBLE = {"kl": 0.054, "perplexity_change": 0.047, "clear_top1_agreement": 0.89}
"""What 8-bit activations did to a pretrained model."""


def test_what_breaks_the_gate_does_not_stand_in_production(start: Start, hub: FakeHub, llama: Path) -> None:
    """The next precision is tried; a line says which, why, with figures. A restart serves what was found then."""
    hub.push(TINY, llama)
    start.figures["int8"] = BABBLE
    shown = start.run(TINY)
    assert "tiny-chat:2 (int8) is not served, int8-weight is tried: KL divergence 0.0540 nats, at most 0.02" in shown
    assert "top-1 agreement where clear 89.00%" in shown and "perplexity +4.70%" in shown
    assert "tiny-chat:3 (int8-weight) is measured beside tiny-chat:1: KL divergence 0.0004 nats" in shown
    assert (start.served, start.repository.aliases("tiny-chat")) == ("tiny-chat:3", {"production": "3"})
    start.jobs.clear()
    assert "is measured" not in start.run(TINY)
    assert (start.served, start.jobs) == ("tiny-chat:3", [])


def test_the_last_resort_is_the_checkpoint_itself(start: Start, hub: FakeHub, llama: Path) -> None:
    hub.push(TINY, llama)
    start.figures.update({"int8": BABBLE, "int8-weight": {"decode_ratio": {"1": 0.3}}})
    shown = start.run(TINY)
    assert "(int8-weight) is not served, bf16 is tried: decode at 1 0.30x" in shown
    assert start.served == "tiny-chat:1" and start.efforts == ["check", "check"], "bf16 is what the others are held to"


def test_a_precision_that_is_asked_for_is_served_with_a_warning(start: Start, hub: FakeHub, llama: Path) -> None:
    hub.push(TINY, llama)
    start.figures["int8"] = BABBLE
    for _ in range(2):
        shown = start.run(TINY, "--precision", "int8")
        assert "warning: tiny-chat:2 (int8) is served as asked: KL divergence 0.0540 nats, at most 0.02" in shown
        assert start.served == "tiny-chat:2" and start.efforts == ["check"]
    assert start.repository.history("tiny-chat", "production")[-1].overridden


def test_a_kill_before_the_measurement_is_made_up_for(
    start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(TINY, llama)

    class Killed(BaseException):
        pass

    def killed(reference: str) -> None:
        raise Killed

    start.figures["int8"] = BABBLE
    with monkeypatch.context() as broken:
        broken.setattr(start, "_measure", killed)
        with pytest.raises(Killed):
            start.run(TINY)
    assert start.repository.aliases("tiny-chat") == {}
    start.run(TINY)
    assert start.served == "tiny-chat:3" and [*start.repository.versions("tiny-chat")][-1].precision == "int8-weight"


def test_where_it_cannot_be_measured_it_is_served_and_said(
    start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(TINY, llama)
    monkeypatch.setattr("service.cli.trial.available_memory", lambda: 500_000_000)
    shown = start.run(TINY)
    assert "tiny-chat:2 (int8) is not measured before it is served: with tiny-chat:1 beside it that needs 80" in shown
    assert "500.0 MB are free" in shown and "not measured yet" in shown
    assert start.served == "tiny-chat:2" and start.efforts == []


def test_a_kill_between_the_two_versions(
    start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bf16 version is there, its download too; the 8-bit one, the alias and the record of the branch are not."""
    hub.push(TINY, llama)

    class Killed(BaseException):
        pass

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr("models.weights.quantize.quantize", killed)
        with pytest.raises(Killed):
            start.run(TINY)
    assert [each.reference for each in start.repository.versions("tiny-chat")] == ["tiny-chat:1"]
    assert start.repository.aliases("tiny-chat") == {}
    hub.requests.clear()
    start.jobs.clear()
    start.run(TINY)
    assert (start.served, start.jobs, hub.weights_sent()) == ("tiny-chat:2", ["quantize", "evaluate"], [])
    assert not list(start.repository.layout.data_dir.glob("downloads/*"))


def test_a_kill_before_the_alias(start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(TINY, llama)
    with monkeypatch.context() as broken:
        broken.setattr(Repository, "promote", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start.run(TINY)
    start.jobs.clear()
    start.run(TINY)
    assert (start.served, start.jobs) == ("tiny-chat:2", [])
    assert start.repository.aliases("tiny-chat") == {"production": "2"}


def test_a_directory(start: Start, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found again as long as its files are the same. No path of this machine is in what is published."""
    shutil.copytree(llama, tmp_path / "My Model")
    monkeypatch.chdir(tmp_path)
    start.run("./My Model")
    assert (start.served, start.jobs) == ("my-model:2", ["needs", "import", "evaluate"])
    start.jobs.clear()
    start.run(str(tmp_path / "My Model"))
    assert (start.served, start.jobs) == ("my-model:2", [])
    told = (start.repository.path(start.repository.resolve("my-model")) / "manifest.json").read_text()
    journal = start.repository.layout.journal("my-model").read_text()
    assert str(tmp_path) not in told + journal and "My Model" not in told + journal
    card = tmp_path / "My Model" / "README.md"
    card.write_text("---\nlicense: mit\n---\n")
    start.run("./My Model")
    assert start.served == "my-model:4"
    times = card.stat().st_atime_ns, card.stat().st_mtime_ns
    card.write_text("---\nlicense: bsd\n---\n")
    os.utime(card, ns=times)
    start.run("./My Model")
    assert start.served == "my-model:6"
    assert start.repository.resolve("my-model").license == "bsd"


def test_a_directory_s_pooling_is_one_of_its_files(tmp_path: Path) -> None:
    """It lies in a sub-directory, and it decides what vectors the version gives."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "onnx").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    seen = [fingerprint(tmp_path)]
    for text in ('{"pooling_mode_mean_tokens": true}', '{"pooling_mode_cls_token": true}'):
        pooling.write_text(text)
        seen.append(fingerprint(tmp_path))
    assert len(set(seen)) == 3 and fingerprint(tmp_path) == seen[-1]
    (tmp_path / "onnx" / "model.onnx").write_text("is never read")
    assert fingerprint(tmp_path) == seen[-1]
    pooling.unlink()
    assert fingerprint(tmp_path) == seen[0]


def test_a_gguf_file(start: Start, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found again as long as it is the same file. Neither its path nor its name is in what is published."""
    gguf_files.of_checkpoint(llama, tmp_path / "My-Model.Q8_0.gguf")
    monkeypatch.chdir(tmp_path)
    start.run("./My-Model.Q8_0.gguf")
    assert (start.served, start.jobs) == ("my-model.q8_0:2", ["needs", "import", "evaluate"])
    start.jobs.clear()
    start.run(str(tmp_path / "My-Model.Q8_0.gguf"))
    assert (start.served, start.jobs) == ("my-model.q8_0:2", [])
    told = (start.repository.path(start.repository.resolve("my-model.q8_0")) / "manifest.json").read_text()
    assert str(tmp_path) not in told and "My-Model" not in told
    gguf_files.of_checkpoint(llama, tmp_path / "My-Model.Q8_0.gguf", general__name="another")
    start.run("./My-Model.Q8_0.gguf", "--precision", "bf16")
    assert start.served == "my-model.q8_0:3"
    assert "leave --pull out" in start.refused("./My-Model.Q8_0.gguf", "--pull")


def test_a_version_of_the_repository(start: Start) -> None:
    for content in ("one", "two"):
        publish(start.repository, content, "chat")
    start.repository.promote("chat", "production", "1", "a test")
    for words, served in (("chat", "chat:1"), ("chat:2", "chat:2"), ("chat@production", "chat:1")):
        start.run(words)
        assert start.served == served
    assert len(start.repository.history("chat", "production")) == 1


def test_a_name_of_its_own(start: Start, hub: FakeHub, llama: Path) -> None:
    publish(start.repository, "another", "tiny-chat")
    hub.push(TINY, llama)
    assert "--name" in start.refused(TINY) and hub.weights_sent() == []
    start.run(TINY, "--name", "tiny")
    assert start.served == "tiny:2"
    start.run(TINY)
    assert start.served == "tiny:2"


def test_measured_before_it_is_served(start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where production takes measured versions only, that is said before anything is fetched."""
    hub.push(TINY, llama)
    monkeypatch.setenv("DOSIRAK_PROTECTED_ALIASES", "production")
    assert "add --evaluate" in start.refused(TINY) and hub.weights_sent() == []
    monkeypatch.setenv("DOSIRAK_GATE_TOP1_AGREEMENT", "0")
    monkeypatch.setenv("DOSIRAK_GATE_DECODE_RATIO", "0")
    monkeypatch.setenv("DOSIRAK_GATE_PERPLEXITY_CHANGE", "9")
    assert "not measured" not in start.run(TINY, "--evaluate")
    assert start.jobs[-1] == "evaluate" and start.repository.report(start.repository.resolve("tiny-chat"))


@pytest.mark.parametrize(
    ("free", "named"),
    [
        ({"disk": 1000}, "more on the data directory's disk and 1.0 kB are free"),
        ({"memory": 1 << 20}, "of memory to be converted and 1.0 MB are free"),
        ({"memory": 1 << 40, "gpu": 1000}, "of memory to be served and 1.0 kB are free"),
    ],
    ids=["disk", "converting", "serving"],
)
def test_a_machine_with_less_refuses_before_the_download(
    start: Start, hub: FakeHub, llama: Path, monkeypatch: pytest.MonkeyPatch, free: dict[str, int], named: str
) -> None:
    hub.push(TINY, llama)
    room = needs.Room(**{"disk": 1 << 40, "memory": 1 << 40, **free})
    monkeypatch.setattr(needs.Room, "of", lambda *arguments: room)
    assert named in start.refused(TINY)
    assert hub.weights_sent() == [] and start.repository.models() == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("./nowhere",), "no directory or GGUF file ./nowhere"),
        (("/nowhere",), "no directory or GGUF file /nowhere"),
        (("Not A Name",), "hub id ORG/NAME"),
        (("nothing",), "There is no model nothing"),
        (("nothing:1",), "There is no model nothing: the repository has chat; the catalogue has smollm2, "),
        (("nothing", "--precision", "bf16"), "There is no model nothing"),
        (("chat:9",), "no model version chat:9"),
        (("chat", "--precision", "bf16"), "dosirak model quantize chat"),
        (("org/name@",), "no revision"),
        (("nothing", "--precision", "int3"), "no precision"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_words_that_name_nothing(start: Start, words: tuple[str, ...], named: str) -> None:
    publish(start.repository, "one", "chat")
    assert named in start.refused(*words)


def test_a_port_that_is_taken_is_said_before_the_download(start: Start, hub: FakeHub, llama: Path) -> None:
    hub.push(TINY, llama)
    with socket.create_server(("127.0.0.1", Settings().port)), pytest.raises(CannotStart, match="is taken"):
        start.run(TINY)
    assert hub.requests == []


def test_options_belong_to_a_model(start: Start) -> None:
    result = CliRunner().invoke(cli.app, ["serve", "--pull"])
    assert result.exit_code == 2 and "name one" in result.output


@pytest.mark.parametrize("option", ["--precision=bf16", "--name=shop", "--evaluate", "--pull"])
def test_the_demo_model_takes_no_options_of_making(start: Start, option: str) -> None:
    result = CliRunner().invoke(cli.app, ["serve", "demo", option], env={"COLUMNS": "300"})
    assert result.exit_code == 2 and "leave them out" in result.output and start.served == ""


def test_a_damaged_report_does_not_stop_a_start(start: Start) -> None:
    version = publish(start.repository, "one", "chat")
    start.repository.put_report(version, report(version, None))
    start.repository.layout.report("chat", "1").write_text("damaged")
    said = start.run("chat:1")
    assert start.served == "chat:1" and "its report is damaged: dosirak model evaluate chat:1" in said


def test_lines_in_a_pipe() -> None:
    """At most one every five seconds, with the speed of this download and the time left."""
    from service.cli.transfer import Lines

    now = [0.0]
    told = io.StringIO()
    lines = Lines(Console(file=told), "downloading", lambda: now[0])
    for seconds, done in ((0.0, 20), (1.0, 22), (6.0, 32), (7.0, 34), (11.5, 43)):
        now[0] = seconds
        lines.bytes(done * 1_000_000, 100_000_000, "model.safetensors")
    assert told.getvalue().splitlines() == [
        "downloading: model.safetensors, 32.0 of 100.0 MB, 2.0 MB/s, 34 s left",
        "downloading: model.safetensors, 43.0 of 100.0 MB, 2.0 MB/s, 28 s left",
    ]
