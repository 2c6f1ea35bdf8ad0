"""`dosirak store push` and `bind` with PostgreSQL: a data directory of before moves to a database and a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from models.errors import Conflict
from models.repository import rollouts
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service import cli
from service.settings import Settings
from service.storage.records import SharedRecords, open_repository
from tests import postgres
from tests.sessions import needs_postgresql
from tests.stores import fresh_store
from tests.versions import publish
from tests.waiting import block_until

pytestmark = needs_postgresql
Start = Callable[..., Repository]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of before, with a database and a store set that are new."""
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOSIRAK_STORE_URL", fresh_store("directory", tmp_path))
    monkeypatch.setenv("DOSIRAK_DATABASE_URL", postgres.server().new_database())
    return tmp_path / "data"


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Opens the repository of a server by the settings, in a data directory by name."""

    def started(name: str, **settings: object) -> Repository:
        repository = open_repository(Settings(data_dir=tmp_path / name, **settings), "server")  # type: ignore[arg-type]
        assert isinstance(repository.records, SharedRecords)
        request.addfinalizer(repository.records.close)
        repository.records.wait()
        return repository

    return started


def run(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["store", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def filled(directory: Path) -> Repository:
    """A data directory with two versions, an alias that moved, and a rollout."""
    repository = Repository(directory)
    for text in ("one", "two"):
        publish(repository, text)
    repository.promote("demo", "production", "2", "the newest")
    repository.promote("demo", "production", "1", "the newest fails")
    rollouts.put(repository, Rollout("demo", "production", "", "2", 30, True, False, RolloutLimits(), ""))
    return repository


def test_versions_and_records_move_once(place: Path, start: Start) -> None:
    old = filled(place)
    told = run("push")
    assert "2 versions pushed: demo:1, demo:2" in told
    assert "1 journals moved: demo (2 entries)" in told and "1 rollouts moved: demo/production" in told
    again = json.loads(run("push", "--json"))
    assert again == {"pushed": [], "entries": {}, "rollouts": [], "kept": []}
    other = start("other")
    assert other.history("demo", "production") == old.history("demo", "production")
    assert rollouts.history(other, "demo", "production") == rollouts.history(old, "demo", "production")
    assert other.resolve("demo").version == "1"


def test_a_directory_joins_what_others_have(place: Path, start: Start) -> None:
    """As where the first instance that started was another one: its records stay, and this directory's join them."""
    first = start("first")
    publish(first, "of another model", name="chat")
    first.promote("chat", "production", "1", "")
    filled(place)
    assert "2 versions pushed" in run("push")
    assert first.refresh() == []
    assert first.resolve("demo").version == "1" and first.resolve("chat").version == "1"


def test_a_push_that_ended_early_goes_on(place: Path, start: Start) -> None:
    old, first = filled(place), start("first")
    with first.records.locked("demo", 5):
        first.records.append("demo", old.records.history("demo").entries[0])
    assert "1 journals moved: demo (1 entries)" in run("push")
    block_until(lambda: len(first.history("demo", "production")) == len(old.history("demo", "production")))
    assert first.history("demo", "production") == old.history("demo", "production")


def test_another_history_is_named_and_kept(place: Path, start: Start) -> None:
    filled(place)
    run("push")
    alone = Repository(place.parent / "third")
    publish(alone, "one", version="9")
    alone.promote("demo", "production", "9", "another story")
    served = start("other").history("demo", "production")
    os_settings = {"DOSIRAK_DATA_DIR": str(place.parent / "third")}
    result = CliRunner().invoke(cli.app, ["store", "push"], env=os_settings)
    assert result.exit_code == 1
    assert "demo has another history in the database: promote there" in result.output
    assert start("other").history("demo", "production") == served


def test_a_number_deleted_here_and_published_there_is_named(place: Path, start: Start) -> None:
    first = start("first")
    publish(first, "of another instance")
    alone = Repository(place)
    publish(alone, "deleted here")
    alone.delete("demo", "1", "bad")
    assert "demo:1 was deleted here" in run("push", status=1)
    assert first.get("demo", "1")


def test_a_start_says_whose_journals_nobody_reads(place: Path, start: Start) -> None:
    start("first").records.documents("rollouts")
    filled(place)
    run("push")
    alone = Repository(place.parent / "late")
    publish(alone, "one", name="chat")
    alone.promote("chat", "production", "1", "before")
    with structlog.testing.capture_logs() as logs:
        late = start("late", store_url=None)

        looked(late)
        (told,) = unread(logs)
    assert told["models"] == ["chat"] and "dosirak store push" in told["to_do"]
    with structlog.testing.capture_logs() as logs:
        looked(start("data"))
    assert not unread(logs), "its journal is part of the shared one"


def unread(logs: list[Any]) -> list[Any]:
    return [each for each in logs if each["event"] == "journals_not_read"]


def looked(repository: Repository) -> None:
    """Waits until the first look at the database has ended."""
    block_until(lambda: isinstance(repository.records, SharedRecords) and repository.records.is_reachable)


def test_two_databases_for_one_store_stop_the_start(place: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start("first")
    assert isinstance(first.records, SharedRecords)
    told = json.loads(run("status", "--json"))
    assert told["database"] == first.records.database_id
    monkeypatch.setenv("DOSIRAK_DATABASE_URL", postgres.server().new_database())
    with pytest.raises(Conflict, match=rf"of database {told['database']}, and DOSIRAK_DATABASE_URL is database "):
        start("second")
    bound = json.loads(run("bind", "--json"))["database"]
    assert bound != told["database"]
    start("second")
    assert json.loads(run("status", "--json"))["database"] == bound
