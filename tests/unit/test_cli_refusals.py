"""The command line refuses by name what it cannot do, and leaves no version, no file and no changed schema then."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from models.repository import rollouts
from models.repository.repository import Repository
from service import cli
from service.cli import terminal
from service.errors import DosirakError, NotFound, Unavailable
from service.storage.database.database import Database
from service.storage.outages import Outages
from tests.checkpoints import save_llama
from tests.commands import refused, run
from tests.migrated import migrate_really as upgrade
from tests.versions import publish


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOGNAME", "kim")  # where getpass looks first
    return tmp_path / "data"


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """`main` sets where lines of the log go."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """Returns the exit status of the whole command."""
    monkeypatch.setattr("sys.argv", ["dosirak", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize(
    "words",
    [
        ("model", "verify", "nobody:1"),
        ("model", "promote", "no such"),
        ("model", "import", "/nonexistent", "tiny"),
        ("model", "rollout", "demo", "--abort"),
        ("model", "delete", "demo"),
        ("model", "evaluate", "demo", "--effort", "great"),
        ("model", "history", "nosuch"),
        ("model", "rollout", "nosuch"),
        ("audit", "verify"),
    ],
    ids=" ".join,
)
def test_failures_are_sentences(
    words: tuple[str, ...],
    log_as_before: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(monkeypatch, *words) == 1
    shown = capsys.readouterr().out
    assert "error:" in shown and "Traceback" not in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("model", "import", "a" * 300, "tiny"), "File name too long"),
        (("model", "import", "/nonexistent", "demo@production"), "demo@production names an alias"),
        (("model", "history", "demo", "--at", "0001-01-01T00:00:00+14:00"), "outside of UTC"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    words: tuple[str, ...],
    named: str,
    data_dir: Path,
    log_as_before: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(Repository(data_dir), "one")
    assert main(monkeypatch, *words) in (1, 2)
    shown = capsys.readouterr()
    assert named in " ".join((shown.out + shown.err).split()) and "Traceback" not in shown.out + shown.err


def test_a_wrong_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_PORT", "99999999")
    result = CliRunner().invoke(cli.app, ["model", "list"])
    assert result.exit_code == 2
    assert "DOSIRAK_PORT" in result.output


@pytest.mark.parametrize("words", [("model", "list"), ("serve", "demo"), ("serve", "--draft", "demo:1")], ids=" ".join)
def test_a_data_directory_that_cannot_be_one_is_a_sentence(
    words: tuple[str, ...],
    tmp_path: Path,
    log_as_before: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "file"))
    assert main(monkeypatch, *words) == 1
    assert "is, or lies in, a file: remove the file, or choose another" in capsys.readouterr().out


def test_lines_of_the_log_are_no_part_of_what_a_program_reads(
    log_as_before: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = terminal.repository

    def told() -> Repository:
        Outages("store").began("writing", "It is full", "disk full")
        return known()

    monkeypatch.setattr("service.cli.models.repository", told)
    assert main(monkeypatch, "model", "list", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [] and "store_failed" in shown.err


def test_a_wrong_word_of_evaluate_makes_no_version(tmp_path: Path, data_dir: Path) -> None:
    source = save_llama(tmp_path / "source")
    assert "choose one of none, check" in refused("model", "import", str(source), "tiny", "--evaluate", "great")
    publish(Repository(data_dir), "one")
    assert "choose one of none, check" in refused("model", "quantize", "demo:1", "--evaluate", "great")
    assert Repository(data_dir).models() == ["demo"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--candidate 2 --weight 50 --reason x", "--reason is kept with a rollout's end"),
        ("--reason x", "--reason is kept with a rollout's end"),
        ("--abort --override", "--override is for the gate"),
        ("--override", "--override is for the gate"),
    ],
)
def test_options_of_a_rollout_that_would_do_nothing_are_refused(data_dir: Path, words: str, named: str) -> None:
    repository = Repository(data_dir)
    for content in ("one", "two"):
        publish(repository, content)
    run("model", "promote", "demo:1")
    assert named in refused("model", "rollout", "demo", *words.split())
    assert rollouts.history(repository, "demo", "production") == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("chat --temperature nan", "finite number"),
        ("chat --temperature inf", "finite number"),
        ("recall demo:1 demo:2 --policies", "name one"),
        ("recall --questions -1", "--questions"),
        ("compare --texts 0", "--texts"),
        ("audit cut --older-than-days 800000", "--older-than-days"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(words: str, named: str) -> None:
    result = CliRunner().invoke(cli.app, words.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2 and named in result.output, result.output


def test_the_audit_of_a_file_that_is_not_there_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path}/mistyped.db")
    for verb in ("verify", "export"):
        with pytest.raises(NotFound, match=r"no database at .*mistyped.db: set DOSIRAK_DATABASE_URL as the server's"):
            run("audit", verb)
    assert not (tmp_path / "mistyped.db").exists()


def test_no_command_upgrades_a_database(data_dir: Path) -> None:
    def revision(put: str = "") -> str:
        with closing(sqlite3.connect(data_dir / "sessions.db")) as connection, connection:
            if put:
                connection.execute("UPDATE alembic_version SET version_num = ?", (put,))
            return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    async def make() -> None:
        database = Database(f"sqlite+aiosqlite:///{data_dir}/sessions.db", 5)
        await upgrade(database)
        await database.close()

    asyncio.run(make())
    assert "0 rows, no problems" in run("audit", "verify")
    revision("0012")
    for words in (("verify",), ("export",), ("cut", "--older-than-days", "9")):
        with pytest.raises(Unavailable, match=r"is at revision 0012, and this version's is .*: start the service once"):
            run("audit", *words)
    publish(Repository(data_dir), "one")
    assert "It is done; the audit has no row of it: The session database is at" in run("model", "promote", "demo:1")
    assert revision() == "0012"
    revision("0099")
    with pytest.raises(DosirakError, match="run the newer version"):
        run("audit", "verify")
