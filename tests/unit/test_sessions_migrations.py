"""A database is brought to this version's schema once, whoever opens it, and a newer one is left alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from pydantic import SecretStr, ValidationError
from sqlalchemy import Connection, text

from service.settings import Settings
from service.storage.database import migrating
from service.storage.database.database import Database
from service.storage.database.migrating import HEAD, OlderDatabase
from service.storage.sessions import NewerDatabase, NewVote, SessionStore, search
from service.storage.sessions.change import text_of
from tests import postgres
from tests.migrated import migrate_really as upgrade
from tests.sessions import KINDS, a_turn, contents, say

SCRIPTS = Path(__file__).parents[2] / "service" / "storage" / "database" / "migrations"


@pytest.fixture(autouse=True)
def really_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copies here (tests.migrated)."""
    monkeypatch.setattr(migrating, "upgrade", upgrade)


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "postgresql":
        return postgres.server().empty_database()
    return f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}"


def config(connection: Connection) -> Config:
    made = Config(attributes={"connection": connection})
    made.set_main_option("script_location", str(SCRIPTS))
    return made


async def check(url: str) -> None:
    """Raises what alembic finds different between the tables of the code and those of the database."""
    database = Database(url, 5)
    async with database.writing() as connection:
        await connection.run_sync(lambda sync: command.check(config(sync)))
    await database.close()


async def test_code_and_migrations_agree(store: SessionStore, database_url: str) -> None:
    await check(database_url)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE sessions ADD COLUMN colour TEXT",
        "DROP INDEX sessions_expiry",
        "ALTER TABLE messages DROP COLUMN name",
    ],
)
async def test_a_difference_would_be_seen(store: SessionStore, database_url: str, change: str) -> None:
    async with store._database.writing() as connection:
        await connection.execute(text(change))
    with pytest.raises(Exception, match="New upgrade operations detected"):
        await check(database_url)


async def test_a_migration_may_take_longer_than_any_other_statement(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index over a large table. PostgreSQL ended it after 20 s, and each try held the table's lock meanwhile."""
    database, really = Database(database_url, 0.25), migrating._upgrade

    def slow(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_sleep(1.5)"))
        really(connection)

    monkeypatch.setattr(migrating, "_upgrade", slow)
    try:
        await upgrade(database)
        await migrating.require_head(database)
    finally:
        await database.close()


def test_head_is_the_newest_script() -> None:
    assert ScriptDirectory(str(SCRIPTS)).get_heads() == [HEAD]


async def test_a_newer_database_is_refused_and_not_touched(store: SessionStore, database_url: str) -> None:
    async with store._database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerDatabase, match="9999"):
        await SessionStore.open(database_url)
    async with store._database.reading() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar_one() == "9999"


async def test_a_check_of_the_schema_changes_nothing(store: SessionStore, database_url: str) -> None:
    database = store._database
    await migrating.require_head(database)
    for revision, error, told in (
        ("0012", OlderDatabase, f"is at revision 0012, and this version's is {HEAD}: start the service once"),
        ("9999", NewerDatabase, "run the newer version"),
    ):
        async with database.writing() as connection:
            await connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        with pytest.raises(error, match=told):
            await migrating.require_head(database)
        async with database.reading() as connection:
            found = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar_one()
        assert found == revision


async def test_a_migration_that_fails_leaves_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(database_url, 5)

    def fail(self: object, *arguments: object, **options: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr("alembic.operations.Operations.create_index", fail)
        with pytest.raises(RuntimeError, match="planted"):
            await upgrade(database)
    listed = (
        "SELECT name FROM sqlite_master"
        if database.is_sqlite
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    async with database.reading() as connection:
        assert (await connection.execute(text(listed))).all() == []
    await upgrade(database)
    await database.close()


async def test_receipts_of_before_become_numbers(database_url: str) -> None:
    """A database of the revision before is read as it was: receipts, cut and messages."""
    database = Database(database_url, 5)
    async with database.writing() as connection:
        await connection.run_sync(lambda sync: command.upgrade(config(sync), "0002"))
    await plant(database)
    await database.close()
    store = await SessionStore.open(database_url)
    session = await store.get("ann", "s_old")
    assert session.cut == {"at": 3, "policy": "window"}
    messages = (await store.messages("ann", "s_old")).data
    assert messages[3].answered is not None and messages[3].answered.context == {
        **OLD_RECEIPT,
        "counts": {"kept": 2, "dropped": 1, "summarised": 1},
    }
    async with store._database.reading() as connection:
        stored = (await connection.execute(text("SELECT context FROM messages WHERE id = 'm_d'"))).scalar_one()
        assert "m_" not in stored
        assert (await connection.execute(text("SELECT count(*) FROM summaries WHERE before IS NULL"))).scalar_one() == 1
    await store.edit_message("ann", "s_old", "m_a", content="changed")
    assert await store.summaries.of("ann", "s_old") == {}, "how far it reaches is not known"
    await store.close()


OLD_RECEIPT = {
    "policy": "window",
    "kept": ["system", "m_c"],
    "dropped": ["m_b"],
    "summarised": ["m_a"],
    "dropped_tokens": 9,
    "cut": {"at": "m_c", "stable_for_tokens": 7},
}


async def plant(database: Database) -> None:
    """What revision 0002 has written: a session whose messages stand at 0, 1, 3 and 4."""
    moment = 1_800_000_000_000_000
    cut = json.dumps({"at": "m_c", "policy": "window"})
    async with database.writing() as connection:
        await connection.execute(
            text(
                "INSERT INTO sessions (number, id, owner, metadata, revision, message_count, next_position, "
                f"ttl_seconds, created_at, updated_at, expires_at, cut, system) VALUES (1, 's_old', 'ann', '{{}}', 3, "
                f"4, 5, 1e9, {moment}, {moment}, 4000000000000000, :cut, 'be brief')"
            ),
            {"cut": cut},
        )
        for number, (id, position) in enumerate({"m_a": 0, "m_b": 1, "m_c": 3, "m_d": 4}.items(), 1):
            role, context = ("assistant", json.dumps(OLD_RECEIPT)) if id == "m_d" else ("user", None)
            await connection.execute(
                text(
                    "INSERT INTO messages (number, id, session, owner, position, role, content, pinned, created_at, "
                    f"context) VALUES ({number}, '{id}', 1, 'ann', {position}, '{role}', 'x', false, {moment}, "
                    ":context)"
                ),
                {"context": context},
            )
        await search.add(connection, "message_grams", "ann", dict.fromkeys(range(1, 5), "x"))
        await search.add(connection, "session_grams", "ann", {1: text_of(None, {})})
        await connection.execute(
            text(f"INSERT INTO summaries VALUES ('ann', 1, 'key', 'what was said', {moment})"),
        )


async def test_answers_of_before_have_no_id_and_new_ones_do(database_url: str) -> None:
    """A database of revision 0003, with a session and its receipts in numbers, goes on as it was."""
    database = Database(database_url, 5)
    async with database.writing() as connection:
        await connection.run_sync(lambda sync: command.upgrade(config(sync), "0002"))
    await plant(database)
    async with database.writing() as connection:
        await connection.run_sync(lambda sync: command.upgrade(config(sync), "0003"))
        before = (await connection.execute(text("SELECT * FROM messages ORDER BY number"))).all()
        if not database.is_sqlite:
            await connection.execute(text("SELECT setval('messages_number_seq', 4)"))
    await database.close()
    store = await SessionStore.open(database_url)
    async with store._database.reading() as connection:
        after = (await connection.execute(text("SELECT * FROM messages ORDER BY number"))).all()
    assert [tuple(row) for row in after] == [(*row, *[None] * 4) for row in before]
    assert await contents(store, "ann", "s_old") == ["x"] * 4
    assert (await store.feedback.all("ann")).data == () == tuple(await store.feedback.summary("ann"))
    await store.append_turn("ann", "s_old", a_turn("new", answer_id="gen-1", model="demo:1"))
    vote, replaced = await store.feedback.vote("ann", NewVote("gen-1", 1))
    assert (vote.model, vote.session_id, replaced) == ("demo:1", "s_old", False)
    await store.delete("ann", "s_old")
    assert (await store.feedback.all("ann")).data == ()
    await store.close()


async def test_many_open_an_empty_database_at_once(database_url: str) -> None:
    stores = await asyncio.gather(*(SessionStore.open(database_url, patience=60) for _ in range(4)))
    session = await stores[0].create("ann")
    for store in stores:
        await say(store, "ann", session.id, "hello")
        await store.close()


async def test_processes_open_an_empty_database_at_once(database_url: str) -> None:
    program = (
        "import asyncio, sys; from service.storage.sessions import SessionStore\n"
        "async def main():\n"
        "    store = await SessionStore.open(sys.argv[1], patience=60)\n"
        "    print((await store.create('ann')).id)\n"
        "    await store.close()\n"
        "asyncio.run(main())"
    )
    arguments = [sys.executable, "-c", program, database_url]
    started = [await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE) for _ in range(3)]
    ended = await asyncio.gather(*(process.communicate() for process in started))
    assert [process.returncode for process in started] == [0, 0, 0]
    store = await SessionStore.open(database_url)
    assert {session.id for session in (await store.sessions("ann")).data} == {out.decode().strip() for out, _ in ended}
    await store.close()


@pytest.mark.parametrize(
    "url",
    ["mysql://host/name", "postgresql://host/name", "sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "nonsense"],
)
async def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"postgresql\+asyncpg|name a file"):
        await SessionStore.open(url)


async def test_a_file_is_private_and_its_commits_are_synced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sessions.db"
    store = await SessionStore.open(f"sqlite+aiosqlite:///{path}")
    session = await store.create("ann")
    await say(store, "ann", session.id, "hello")
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    async with store._database.reading() as connection:
        for pragma, value in {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1}.items():
            assert (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar_one() == value, pragma
    await store.close()


async def test_the_settings_name_the_database(tmp_path: Path) -> None:
    """A file in the data directory, whatever characters that has, else what was set; its password is never shown."""
    odd = tmp_path / "a b#c?d%41"
    store = await SessionStore.open(Settings(data_dir=odd).session_database)
    await store.close()
    assert (odd / "sessions.db").exists()
    url = "postgresql+asyncpg://dosirak:hunter2@db/chats"
    settings = Settings(database_url=SecretStr(url))
    assert settings.session_database == url and "hunter2" not in repr(settings.shown())
    with pytest.raises(ValidationError, match="database_url"):
        Settings(database_url=SecretStr("mysql://host/name"))
