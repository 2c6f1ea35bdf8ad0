"""Session databases for tests begin as a copy of one that was migrated once: migrations take longer than most tests.

A copy is what the migrations make of an empty database. test_sessions_migrations and programs that a test starts
migrate theirs.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import sqlite3
import tempfile
import uuid
from contextlib import closing
from functools import cache
from pathlib import Path

from service.storage.database import migrating
from service.storage.database.database import Database

migrate_really = migrating.upgrade
NEW_ID = "UPDATE record_state SET database_id = '{}'"
"""Each database has an id of its own."""


async def upgrade(database: Database) -> None:
    """As `migrating.upgrade`; a file that is empty begins as a copy."""
    if database.is_sqlite:
        await asyncio.to_thread(_fill, Path(str(database.engine.url.database)))
    await migrate_really(database)


def _fill(path: Path) -> None:
    if path.stat().st_size > 0:
        return
    shutil.copyfile(template(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(NEW_ID.format(uuid.uuid4().hex))


@cache
def template() -> Path:
    """A migrated file that holds nothing."""
    folder = Path(tempfile.mkdtemp(prefix="migrated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "sessions.db"
    migrate(f"sqlite+aiosqlite:///{path}")
    return path


def migrate(url: str) -> None:
    """Brings a database up to date. Not to be called in a thread with an event loop."""

    async def migrated() -> None:
        database = Database(url, 30.0)
        await migrate_really(database)
        if database.is_sqlite:
            await database.truncate_log()
        await database.close()

    asyncio.run(migrated())


def begin_with_copies() -> None:
    """From now on this process's session databases begin as copies."""
    migrating.upgrade = upgrade
