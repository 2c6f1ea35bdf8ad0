"""The command line: sentences instead of tracebacks, and the repository's verbs end to end on tiny checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from models.errors import InvalidSource, RepositoryError
from models.repository import rollouts
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service import cli
from service.settings import Settings
from tests.checkpoints import save_llama
from tests.reports import COMPARED, report
from tests.versions import publish


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOGNAME", "kim")  # where getpass looks first
    return tmp_path / "data"


def run(*words: str) -> str:
    result = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    with pytest.raises(RepositoryError) as error:
        run(*words)
    return str(error.value)


def test_import_quantize_verify_list(tmp_path: Path, data_dir: Path) -> None:
    source = save_llama(tmp_path / "source")
    assert "published tiny:1 (bf16" in run("model", "import", str(source), "tiny")
    assert "published tiny:2 (int8" in run("model", "quantize", "tiny:1")
    assert "files as published" in run("model", "verify", "tiny:2")
    run("model", "promote", "tiny:2", "--reason", "a test")
    shown = run("model", "show", "tiny:2")
    assert "model.layers.0.mlp.up_proj" in shown and "I8" in shown and "BF16" in shown
    shown = run("model", "list")
    assert "tiny:1" in shown and "int8" in shown and "production" in shown
    assert [each.lineage.author for each in Repository(data_dir).versions("tiny")] == ["kim", "kim"]
    assert Repository(data_dir).resolve("tiny").version == "2"


def test_promote_and_rollback(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    run("model", "promote", "demo:2")
    assert "demo@production is now demo:1" in run("model", "rollback", "demo")


def test_a_rollback_shows_what_it_breaks(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for perplexity in (1.25, 1.0):
        version = publish(repository, f"of {perplexity}")
        repository.put_report(version, msgspec.structs.replace(report(version, None), perplexity=perplexity))
        run("model", "promote", version.reference)
    shown = run("model", "rollback", "demo")
    assert "demo@production is now demo:1" in shown and "overridden: perplexity +25.00%" in shown


def test_an_export_into_a_directory_that_is_not_there_names_it(data_dir: Path, tmp_path: Path) -> None:
    publish(Repository(data_dir), "one")
    (tmp_path / "file").touch()
    for directory in (tmp_path / "nowhere", tmp_path / "file"):
        told = refused("model", "export", "demo:1", str(directory / "x.tar"))
        assert f"The directory {directory} takes no file" in told and "name another one" in told
    run("model", "export", "demo:1", str(tmp_path / "x.tar"))


def test_the_history_says_who(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two", "three", "four"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    monkeypatch.setenv("DOSIRAK_ACTOR", "release robot")
    run("model", "promote", "demo:2")
    monkeypatch.delenv("DOSIRAK_ACTOR")
    run("model", "rollback", "demo")
    run("model", "rollout", "demo", "--candidate", "3")
    run("model", "rollout", "demo", "--promote")
    told = [each["actor"] for each in json.loads(run("model", "history", "demo", "--json"))]
    assert told == ["kim", "release robot", "kim", "kim"]
    assert "kim" in run("model", "history", "demo")
    run("model", "delete", "demo:1")
    run("model", "gc", "--keep", "1")
    lines = [json.loads(line) for line in repository.layout.journal("demo").read_text().splitlines()]
    assert [(each["action"], each["version"], each["actor"]) for each in lines[-2:]] == [
        ("delete", "1", "kim"),
        ("delete", "2", "kim"),
    ]


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_001)
    assert Settings().who == "uid 4000000001"


def test_rollouts(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two", "three"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    shown = run("model", "rollout", "demo", "--candidate", "2", "--weight", "25")
    assert "demo:2" in shown and "25 %" in shown and "running" in shown
    assert "aborted" in run("model", "rollout", "demo", "--abort", "--reason", "slow")
    run("model", "rollout", "demo", "--candidate", "3")
    assert "promoted" in run("model", "rollout", "demo", "--promote")
    assert repository.resolve("demo").version == "3"
    assert [each["state"] for each in json.loads(run("model", "rollout", "demo", "--json"))] == ["aborted", "promoted"]


def test_a_rollout_changes_what_was_asked_and_nothing_else(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two", "three"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    for words in ("--weight 50", "--shadow", "--no-sticky"):
        assert "begin one with --candidate" in refused("model", "rollout", "demo", *words.split())
    limits = RolloutLimits(0.5, 2.0, 7)
    began = rollouts.put(repository, Rollout("demo", "production", "", "2", 5.0, False, True, limits, ""))
    changes: list[tuple[str, dict[str, float | bool]]] = [
        ("--candidate 2 --weight 50", {"weight": 50.0}),
        ("--weight 20", {"weight": 20.0}),
        ("--no-shadow", {"shadow": False}),
        ("--sticky", {"sticky": True}),
        ("", {}),
    ]
    for words, change in changes:
        run("model", "rollout", "demo", *words.split())
        began = msgspec.structs.replace(began, **change)
        assert rollouts.history(repository, "demo", "production") == [began], words
    assert "choose one" in refused("model", "rollout", "demo", "--weight", "50", "--promote")
    assert "abort or promote it first" in refused("model", "rollout", "demo", "--candidate", "3")
    run("model", "rollout", "demo", "--abort")
    run("model", "rollout", "demo", "--candidate", "2")
    fresh = rollouts.running(repository, "demo", "production")
    assert fresh is not None and (fresh.weight, fresh.sticky, fresh.shadow) == (10.0, True, False)
    assert fresh.limits == RolloutLimits(), "of an earlier rollout nothing is left"


def test_a_rollout_s_candidate_passes_the_gate_or_is_promoted_with_a_reason(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    run("model", "rollout", "demo", "--candidate", "2")
    worse = repository.get("demo", "2")
    repository.put_report(worse, report(worse, msgspec.structs.replace(COMPARED, kl=9.0, perplexity_change=1.0)))
    assert "breaks the gate's limits" in refused("model", "rollout", "demo", "--weight", "50")
    run("model", "rollout", "demo", "--weight", "50", "--override")
    assert "breaks the gate's limits" in refused("model", "rollout", "demo", "--promote", "--reason", "it is hot")
    assert "override with a reason" in refused("model", "rollout", "demo", "--promote", "--override")
    assert repository.resolve("demo").version == "1"
    run("model", "rollout", "demo", "--promote", "--override", "--reason", "it is hot")
    last = repository.history("demo", "production")[-1]
    assert (last.version, last.reason) == ("2", "it is hot") and last.overridden


def test_every_listing_speaks_json(data_dir: Path) -> None:
    repository = Repository(data_dir)
    publish(repository, "one")
    run("model", "promote", "demo:1", "--reason", "first")
    assert json.loads(run("model", "list", "--json"))[0]["model"] == "demo:1"
    shown = json.loads(run("model", "show", "demo", "--json"))
    assert (shown["aliases"], shown["report"], len(shown["files"])) == (["production"], None, 2)
    assert shown["layers"] == [{"pattern": "text", "dtype": "U8"}]
    assert json.loads(run("model", "history", "demo", "--json"))[0]["reason"] == "first"
    assert json.loads(run("model", "verify", "demo:1", "--json"))["ok"] is True
    assert json.loads(run("model", "compare", "demo:1", "demo:1", "--json"))[1]["model"] == "demo:1"
    assert json.loads(run("model", "gc", "--json"))["versions"] == []
    assert "not measured yet" in run("model", "compare", "demo:1", "demo@production")


def test_export_delete_import(tmp_path: Path, data_dir: Path) -> None:
    run("model", "import", str(save_llama(tmp_path / "source")), "tiny")
    run("model", "export", "tiny:1", str(tmp_path / "tiny.tar"))
    assert "deleted tiny:1" in run("model", "delete", "tiny:1", "--reason", "a test")
    assert "published tiny:2" in run("model", "import", str(tmp_path / "tiny.tar"), "tiny")
    assert "precision" in run("model", "show", "tiny") and Repository(data_dir).resolve("tiny").version == "2"


def test_a_fresh_installation_can_be_measured() -> None:
    shown = run("compare", "--texts", "1")
    assert "demo:1 bf16" in shown and "demo:2 int8" in shown


@pytest.mark.parametrize(
    "words",
    [
        ("model", "verify", "nobody:1"),
        ("model", "promote", "no such"),
        ("model", "import", "/nonexistent", "tiny"),
        ("model", "rollout", "demo", "--abort"),
        ("model", "delete", "demo"),
        ("model", "evaluate", "demo", "--effort", "great"),
    ],
    ids=" ".join,
)
def test_failures_are_sentences(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["dosirak", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr().out
    assert ended.value.code == 1
    assert "error:" in shown and "Traceback" not in shown


def test_an_import_renders_chats_as_a_server_does(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ 'a' * 200000000 }}")
    with pytest.raises(InvalidSource, match="writes too much text"):
        run("model", "import", str(source), "tiny")


def test_a_wrong_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_PORT", "99999999")
    result = CliRunner().invoke(cli.app, ["model", "list"])
    assert result.exit_code == 2
    assert "DOSIRAK_PORT" in result.output
