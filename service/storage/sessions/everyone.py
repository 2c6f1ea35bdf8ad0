"""These statements are about the files and batches of every owner: the limit of all files together, and the worker that
works on one batch after the other. No route can reach them: they return no owner's content."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, case, delete, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from service.storage.database.tables import batches, files
from service.storage.sessions.file_values import OPEN

LEAST_BYTES: Final = 4096
"""What the smallest file counts: a block of the disk."""
KEPT_BATCHES: Final = timedelta(days=31)


async def bytes_of_files(connection: AsyncConnection) -> int:
    """Returns the bytes of all files, each at least LEAST_BYTES."""
    counted = case((files.c.bytes < LEAST_BYTES, LEAST_BYTES), else_=files.c.bytes)
    return int((await connection.execute(select(func.coalesce(func.sum(counted), 0)))).scalar_one())


async def contents_of_files(connection: AsyncConnection) -> dict[str, str | None]:
    """Returns the ids of all files, each with the sha256 of its content where that lies in the store."""
    return {row.id: row.sha256 for row in await connection.execute(select(files.c.id, files.c.sha256))}


async def inputs_in_store(connection: AsyncConnection) -> set[str]:
    reading = select(files.c.id).join(batches, batches.c.input_file_id == files.c.id)
    statement = reading.where(batches.c.status.in_(OPEN), files.c.sha256.is_not(None))
    return set((await connection.execute(statement)).scalars())


async def remove_expired(connection: AsyncConnection, now: datetime) -> None:
    """Removes the rows of expired files that no open batch reads, and of batches that ended long ago."""
    read = select(batches.c.input_file_id).where(batches.c.status.in_(OPEN))
    await connection.execute(delete(files).where(files.c.expires_at <= now, files.c.id.not_in(read)))
    ended = batches.c.status.not_in(OPEN), batches.c.created_at <= now - KEPT_BATCHES
    await connection.execute(delete(batches).where(*ended))


def free_batches(now: datetime, after: tuple[datetime, int] | None = None) -> Select[Any]:
    """Returns the open batches that nobody works on, oldest first, behind the one with this time and number."""
    free = or_(batches.c.claim.is_(None), batches.c.lease_until <= now)
    statement = select(batches).where(batches.c.status.in_(OPEN), free)
    if after is not None:
        statement = statement.where(tuple_(batches.c.created_at, batches.c.number) > after)
    return statement.order_by(batches.c.created_at, batches.c.number)


async def ids_of_open_batches(connection: AsyncConnection) -> set[str]:
    return set((await connection.execute(select(batches.c.id).where(batches.c.status.in_(OPEN)))).scalars())


async def counts(connection: AsyncConnection) -> dict[str, int]:
    """Returns how many batches there are, by status."""
    counted = select(batches.c.status, func.count()).group_by(batches.c.status)
    return {row.status: row[1] for row in await connection.execute(counted)}
