"""The engine of a SQLite file: every connection commits durably, and none is used behind the file that it was opened
for.

A file that is moved away takes with it what is written to it: such a call is refused, until the file is back. Another
file in its place, as one restored from a backup, is opened anew, but never beside the log of the one before.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

_FILE: Final = "file"
_PRAGMAS: Final = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON")


def sqlite_engine(url: URL, patience: float, pool_size: int) -> AsyncEngine:
    """Makes the file where it is not there. Raises OSError."""
    path = Path(str(url.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # its log and index get the same permissions
    engine = create_async_engine(url, pool_size=pool_size, max_overflow=0, pool_timeout=patience)
    listens = event.listens_for

    @listens(engine.sync_engine, "do_connect")
    def look(*_: object) -> None:
        path.stat()  # else SQLite would make an empty file, and all sessions were gone

    @listens(engine.sync_engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # we begin transactions, not the driver
        record.info[_FILE] = _identity(path)
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={int(patience * 1000)}", *_PRAGMAS):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @listens(engine.sync_engine, "checkout")
    def check(_connection: object, record: Any, _proxy: object) -> None:
        if record.info[_FILE] != _identity(path):
            if _size(path.with_name(f"{path.name}-wal")):
                raise OSError(errno.ESTALE, f"{path.name} was replaced, and not the {path.name}-wal beside it")
            raise DisconnectionError

    @listens(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("writing") else "BEGIN")

    return engine


def _identity(path: Path) -> tuple[int, int]:
    """Raises OSError."""
    about = path.stat()
    return about.st_dev, about.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
