"""Stored files: the rows of `/v1/files`. Their contents are on the disk, and this module knows nothing of them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from service.errors import Conflict, QuotaExceeded
from service.storage.database.database import uninterrupted
from service.storage.sessions import everyone
from service.storage.sessions.file_values import OPEN, StoredFile
from service.storage.sessions.limits import check_room
from service.storage.sessions.owned import Owned, StoredKind


class StoredFiles(StoredKind):
    @uninterrupted("write")
    async def add(
        self,
        owner: str,
        id: str,
        *,
        purpose: str,
        filename: str,
        size: int,
        seconds: float | None,
        most_bytes: int | None = None,
        sha256: str | None = None,
    ) -> StoredFile:
        """Stores the row of a file whose content is on the disk. `most_bytes` bounds all files of every owner together.
        Raises StorageFull past it, QuotaExceeded past the number of files of one owner."""
        mine = self._owned(owner)
        expires_at = None if seconds is None else mine.now + timedelta(seconds=seconds)
        file = StoredFile(id, purpose, filename, size, mine.now, expires_at, sha256)
        async with self._database.writing() as connection:
            await self._database.lock(connection, "files")
            await connection.execute(mine.delete("files").where(mine.columns("files").id == id))
            if most_bytes is not None:
                check_room(await everyone.bytes_of_files(connection) + max(size, everyone.LEAST_BYTES), most_bytes)
                count = await mine.count(connection, mine.select("files", "number"), self._limits.max_per_owner)
                if count >= self._limits.max_per_owner:
                    raise QuotaExceeded(f"You have {count} files already: delete some first", max_files=count)
            await mine.insert(connection, "files", [asdict(file)])
        return file

    @uninterrupted("read")
    async def get(self, owner: str, id: str, at: datetime | None = None) -> StoredFile:
        """Returns a file; with `at` also one that has expired since then. Raises NotFound."""
        mine = self._owned(owner) if at is None else Owned(owner, at)
        async with self._database.reading() as connection:
            return file_of(await mine.named(connection, "files", id, "file_id"))

    @uninterrupted("read")
    async def all(
        self, owner: str, *, purpose: str | None = None, after: str | None = None, limit: int, newest_first: bool = True
    ) -> tuple[list[StoredFile], bool]:
        """Returns files behind the file `after`, and whether there are more. Raises NotFound for `after`."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            statement = await mine.behind(connection, "files", after, newest_first=newest_first)
            if purpose is not None:
                statement = statement.where(mine.columns("files").purpose == purpose)
            rows = (await connection.execute(statement.limit(limit + 1))).all()
        return [file_of(row) for row in rows[:limit]], len(rows) > limit

    @uninterrupted("write")
    async def delete(self, owner: str, id: str) -> StoredFile:
        """Deletes a file's row, and returns it. Raises NotFound, and Conflict while a batch reads the file."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            row = await mine.named(connection, "files", id, "file_id", lock=True)
            its = mine.columns("batches")
            reading = mine.select("batches", "id").where(its.input_file_id == id, its.status.in_(OPEN))
            batch = (await connection.execute(reading.limit(1))).scalar_one_or_none()
            if batch is not None:
                raise Conflict(f"{batch} reads this file: cancel it, or wait for its end", param="file_id")
            await connection.execute(mine.delete("files").where(mine.columns("files").number == row.number))
            return file_of(row)

    @uninterrupted("maintain")
    async def present(self) -> tuple[dict[str, str | None], int]:
        """Returns the ids of every owner's files with their sha256, and the bytes of all, as the limit counts them."""
        async with self._database.reading() as connection:
            return await everyone.contents_of_files(connection), await everyone.bytes_of_files(connection)

    @uninterrupted("maintain")
    async def in_store(self) -> set[str]:
        """Returns the ids of the files that open batches read and whose contents lie in the store."""
        async with self._database.reading() as connection:
            return await everyone.inputs_in_store(connection)

    @uninterrupted("maintain")
    async def remove_expired(self) -> None:
        """Removes the rows of every owner's expired files that no open batch reads, and of batches that ended long
        ago."""
        async with self._database.writing() as connection:
            await everyone.remove_expired(connection, self._owned("").now)


def file_of(row: Row[Any]) -> StoredFile:
    return StoredFile(row.id, row.purpose, row.filename, row.bytes, row.created_at, row.expires_at, row.sha256)
