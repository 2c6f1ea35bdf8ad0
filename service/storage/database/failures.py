"""This module translates the database's failures into the errors of service/errors: a retry helps, or the disk is full.

| the database says | the caller gets |
|---|---|
| locked, busy, too slow, not reachable, shutting down | Unavailable, with `retry_after` |
| full: its disk, its quota | StorageFull |
| damaged, read-only, not readable | Unavailable; only an operator can help, and the log has the reason |

Every other error is a defect of this service and stays as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.errors import DosirakError, StorageFull, Unavailable

RETRY_SECONDS = 1.0
_LATER = 5 * RETRY_SECONDS


class Busy(Unavailable):
    """Others have the database for now, or it starts."""


def busy() -> Busy:
    return Busy("The session database is busy: try again", retry_after=RETRY_SECONDS)


def _full() -> StorageFull:
    return StorageFull("The disk of the session database is full: try again when the operator has made room")


def _read_only() -> Unavailable:
    return Unavailable("The session database is read-only now: try again later", retry_after=_LATER)


def _damaged() -> Unavailable:
    return Unavailable(
        "The session database is damaged here: try again when the operator has restored it", retry_after=_LATER
    )


def _unreachable() -> Unavailable:
    return Unavailable("The session database cannot be used now: try again later", retry_after=_LATER)


_SQLITE: Final[dict[int, Callable[[], DosirakError]]] = {
    sqlite3.SQLITE_BUSY: busy,
    sqlite3.SQLITE_LOCKED: busy,
    sqlite3.SQLITE_INTERRUPT: busy,
    sqlite3.SQLITE_FULL: _full,
    sqlite3.SQLITE_READONLY: _read_only,
    sqlite3.SQLITE_PERM: _read_only,
    sqlite3.SQLITE_CORRUPT: _damaged,
    sqlite3.SQLITE_NOTADB: _damaged,
    sqlite3.SQLITE_IOERR: _unreachable,
    sqlite3.SQLITE_CANTOPEN: _unreachable,
}
_POSTGRESQL: Final[tuple[tuple[tuple[str, ...], Callable[[], DosirakError]], ...]] = (
    (("53100", "53400"), _full),
    (("25006",), _read_only),  # a standby answers, as after a failover
    (("XX001", "XX002", "42P01"), _damaged),
    (("58",), _unreachable),
    (("08", "40", "53", "55", "57", "28", "3D"), busy),
)
"""Failures by the first characters of a state; the first row that fits holds. The last: connection, rollback,
resources, locks, operator's intervention; a login or database that does not exist (yet)."""
_NO_TABLE: Final = "no such table"
"""What SQLite says of a file that was emptied or replaced: every table is there once the store is open."""


def failure(error: BaseException) -> DosirakError | None:
    """Returns the error that the caller gets for `error`; None where `error` is a defect."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error) or isinstance(getattr(original, "sqlstate", None), str):
        make = _told(original)
        return make() if make else None
    lost = isinstance(error, DBAPIError) and (error.connection_invalidated or isinstance(error, InterfaceError))
    if lost or isinstance(original, OSError | TimeoutError | PoolTimeout):
        return _unreachable()
    return None


def outlives(error: BaseException) -> bool:
    """Returns whether a connection may keep what made this failure, as a page of a file that was restored since, or the
    right to read alone: the next call then needs another connection. Where a disk takes no writes, connections stay: to
    open one of SQLite takes writes."""
    return _told(error) in (_read_only, _damaged)


def reason(error: BaseException) -> str:
    """Returns the database's own words for the log, without the statement and its values, which hold users' text."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return f"{type(original).__name__}: {original}"


def kind(error: BaseException) -> str:
    """Returns what failures of one kind have in common: reasons may name numbers of processes and pages."""
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlstate", None) or getattr(original, "sqlite_errorname", "")
    return f"{type(original).__name__} {code}"


def _told(error: object) -> Callable[[], DosirakError] | None:
    """Returns what makes the error of a failure that the database itself tells; None where it is another."""
    if isinstance(error, sqlite3.Error):
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return _damaged if str(error).startswith(_NO_TABLE) else _SQLITE.get(primary)
    state = str(getattr(error, "sqlstate", None))
    return next((make for starts, make in _POSTGRESQL if state.startswith(starts)), None)
