"""The command line: sentences instead of tracebacks, and the repository's verbs end to end on tiny checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from models.errors import Corrupt, InvalidSource
from models.repository import rollouts
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service.cli.reports import facts_of
from service.settings import Settings
from tests.checkpoints import save_llama
from tests.commands import refused, run
from tests.reports import COMPARED, report
from tests.versions import publish


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOGNAME", "kim")  # where getpass looks first
    return tmp_path / "data"


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


def test_a_promotion_that_changes_nothing_says_so_and_leaves_no_row(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, told = Repository(data_dir), list[str]()
    for content in ("one", "two"):
        publish(repository, content)
    for words in (("promote", "demo:1"), ("promote", "demo:2"), ("rollback", "demo")):
        run("model", *words)
    monkeypatch.setattr("service.cli.aliases.tell", lambda action, *_, **__: told.append(action))
    assert "demo@production is demo:1 already" in run("model", "promote", "demo:1", "--reason", "again")
    assert json.loads(run("model", "promote", "demo:1", "--json"))["version"] == "1"
    assert told == [] and len(repository.history("demo", "production")) == 3
    run("model", "promote", "demo:2")
    assert told == ["aliases.promote"]


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


def test_an_import_renders_chats_as_a_server_does(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ 'a' * 200000000 }}")
    with pytest.raises(InvalidSource, match="writes too much text"):
        run("model", "import", str(source), "tiny")


def test_no_listing_cuts_an_identifier_off(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(data_dir)
    manifest = publish(repository, "one")
    monkeypatch.setenv("DOSIRAK_ACTOR", actor := "release-robot-" + "0123456789" * 4)
    run("model", "promote", "demo:1", "--reason", "a reason of some words that need a column of their own")
    shown = run("model", "history", "demo")
    assert "…" not in shown, shown
    rows = [line.split("│")[2].strip() for line in shown.splitlines() if "│" in line]
    assert "".join(rows) == actor
    for sha256 in (file.sha256 for file in manifest.files):
        lines = run("model", "show", "demo:1").splitlines()
        assert sha256 in "".join(line.split("│")[3].strip() for line in lines if line.count("│") == 4)
    assert "…" not in run("model", "catalogue")


def test_texts_of_others_are_no_markup_and_control_no_terminal(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two"):
        publish(repository, content)
    text = "fix [/foo] [bold]now :bug: \x1b[31m"
    run("model", "promote", "demo:1", "--reason", text)
    rows = [line.split("│")[6] for line in run("model", "history", "demo").splitlines() if line.count("│") == 8]
    assert "".join("".join(rows).split()) == "fix[/foo][bold]now:bug:[31m"
    run("model", "rollout", "demo", "--candidate", "2")
    assert "[/foo]" in run("model", "rollout", "demo", "--abort", "--reason", "[/foo]")


def test_a_damaged_report_stops_no_listing(data_dir: Path) -> None:
    repository = Repository(data_dir)
    manifest = publish(repository, "one")
    repository.put_report(manifest, report(manifest, None))
    repository.layout.report("demo", "1").write_text("damaged")
    facts = facts_of(repository, manifest)
    assert (facts["report"], facts["report_state"]) == (None, "damaged")
    assert json.loads(run("model", "list", "--json"))[0]["report_state"] == "damaged"
    for verb in (("show", "demo:1"), ("compare", "demo:1")):
        assert "demo:1: damaged: dosirak model evaluate demo:1" in run("model", *verb)


def test_files_of_a_newer_release_are_not_advised_away(data_dir: Path) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    run("model", "rollout", "demo", "--candidate", "2")
    (kept,) = (data_dir / "rollouts").rglob("*production*")
    kept.write_bytes(kept.read_bytes().replace(b'"weight"', b'"since":1,"weight"'))
    with pytest.raises(Corrupt, match=r"or a newer release wrote them: .*; run that release, or remove them"):
        run("model", "rollout", "demo")
    journal = repository.layout.journal("demo")
    journal.write_text(journal.read_text().replace('{"', '{"since": 1, "', 1))
    with pytest.raises(Corrupt, match="or a newer release wrote it; run that release, or restore the line"):
        run("model", "history", "demo")


def test_a_time_of_the_history_has_its_zone(data_dir: Path) -> None:
    repository = Repository(data_dir)
    publish(repository, "one")
    run("model", "promote", "demo:1")
    journal = repository.layout.journal("demo")
    (entry,) = repository.history("demo", "production")
    journal.write_text(journal.read_text().replace(entry.time, "2026-01-01T12:00:00.000000+00:00"))
    for at, known in (
        ("2026-01-01T12:30:00", 1),
        ("2026-01-01T12:30:00+09:00", 0),
        ("2026-01-01T21:30:00+09:00", 1),
        ("2026-01-01T11:30:00", 0),
    ):
        assert len(json.loads(run("model", "history", "demo", "--at", at, "--json"))) == known, at
