"""This module translates the database's failures into the errors of service/errors: a retry helps, or the disk is full.

| the database says | the caller gets | |---|---| | locked, busy, too slow, not reachable, shutting down | Unavailable,
with `retry_after` | | full: its disk, its quota | StorageFull | | damaged, not readable, not writable | Unavailable;
only an operator can help, and the log has the reason |

Every other error is a defect of this service and stays as it is.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.errors import DosirakError, StorageFull, Unavailable

RETRY_SECONDS = 1.0
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT}
_BROKEN = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
}
_FULL_STATES = ("53100", "53400")
_BUSY_CLASSES = ("08", "40", "53", "55", "57", "28", "3D")
"""Connection, rollback, resources, locks, operator's intervention; a login or database that does not exist (yet)."""


def busy() -> Unavailable:
    return Unavailable("The session database is busy: try again", retry_after=RETRY_SECONDS)


def failure(error: BaseException) -> DosirakError | None:
    """Returns the error that the caller gets for `error`; None where `error` is a defect."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        return _of_sqlite(getattr(original, "sqlite_errorcode", 0) & 0xFF)
    state = getattr(original, "sqlstate", None)
    if isinstance(state, str):
        return _of_postgresql(state)
    lost = isinstance(error, DBAPIError) and (error.connection_invalidated or isinstance(error, InterfaceError))
    if lost or isinstance(original, OSError | TimeoutError | PoolTimeout):
        return _unreachable()
    return None


def reason(error: BaseException) -> str:
    """Returns the database's own words for the log, without the statement and its values, which hold users' text."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return f"{type(original).__name__}: {original}"


def _of_sqlite(code: int) -> DosirakError | None:
    if code in _BUSY:
        return busy()
    if code == sqlite3.SQLITE_FULL:
        return _full()
    return _unreachable() if code in _BROKEN else None


def _of_postgresql(state: str) -> DosirakError | None:
    if state in _FULL_STATES:
        return _full()
    return busy() if state.startswith(_BUSY_CLASSES) else None


def _full() -> StorageFull:
    return StorageFull("The disk of the session database is full: delete sessions, or tell the operator")


def _unreachable() -> Unavailable:
    return Unavailable("The session database cannot be used now: try again later", retry_after=5 * RETRY_SECONDS)
