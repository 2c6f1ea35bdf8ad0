"""Stored batches: the rows of `/v1/batches`, and the claim by which one instance at a time works on a batch.

    validating ─> in_progress ─> finalizing ─> completed, expired
        ├─> failed     └─> cancelling ─> cancelled
        └─> cancelled, where no worker has it

A worker claims a batch, renews its lease, and loses it when it shows no sign of life: then another goes on. What a
worker that has lost its claim would write is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import Conflict, InvalidRequest, QuotaExceeded
from service.storage.database.database import uninterrupted
from service.storage.sessions import everyone
from service.storage.sessions.file_values import OPEN, BatchClaim, BatchFacts, StoredBatch, StoredFile, new_batch_id
from service.storage.sessions.owned import Owned, StoredKind

LEASE_SECONDS: Final = 6.0
"""How long a batch waits for a worker that does not renew its claim."""
WINDOW: Final = timedelta(hours=24)
CANCELLABLE: Final = ("validating", "in_progress")
_LOOKED_AT: Final = 64
"""How many batches are read at once."""


class StoredBatches(StoredKind):
    @uninterrupted("write")
    async def create(self, owner: str, input_file_id: str, facts: BatchFacts) -> StoredBatch:
        """Stores a batch that reads a file of its owner. Raises NotFound and InvalidRequest for the file,
        QuotaExceeded."""
        mine = self._owned(owner)
        times = {"validating": int(mine.now.timestamp())}
        made = StoredBatch(
            new_batch_id(),
            owner,
            "validating",
            input_file_id,
            mine.now,
            mine.now + WINDOW,
            replace(facts, times=times),
            mine.now,
        )
        row = {"id": made.id, "status": made.status, "input_file_id": input_file_id, "created_at": made.created_at}
        rest = {"expires_at": made.expires_at, "claim": None, "lease_until": mine.now, "facts": asdict(made.facts)}
        async with self._database.writing() as connection:
            await self._database.lock(connection, "owner", owner)
            file = await mine.named(connection, "files", input_file_id, "input_file_id", lock=True)
            if file.purpose != "batch":
                raise InvalidRequest("`input_file_id` must be a file of purpose `batch`", param="input_file_id")
            most = self._limits.max_per_owner
            if await mine.count(connection, mine.select("batches", "number"), most) >= most:
                raise QuotaExceeded(f"You have {most} batches already: they are forgotten after 31 days")
            await mine.insert(connection, "batches", [{**row, **rest}])
        return made

    @uninterrupted("read")
    async def get(self, owner: str, id: str) -> StoredBatch:
        """Returns a batch. Raises NotFound."""
        async with self._database.reading() as connection:
            return batch_of(await self._owned(owner).named(connection, "batches", id, "batch_id"))

    @uninterrupted("read")
    async def all(self, owner: str, *, after: str | None, limit: int) -> tuple[list[StoredBatch], bool]:
        """Returns batches behind the batch `after`, newest first, and whether there are more. Raises NotFound."""
        mine = self._owned(owner)
        async with self._database.reading() as connection:
            statement = await mine.behind(connection, "batches", after)
            rows = (await connection.execute(statement.limit(limit + 1))).all()
        return [batch_of(row) for row in rows[:limit]], len(rows) > limit

    @uninterrupted("write")
    async def cancel(self, owner: str, id: str) -> StoredBatch:
        """Asks for a batch's end: its worker ends it, and a batch without answers and worker has ended at once. Raises
        NotFound, and Conflict for a batch that has ended."""
        mine = self._owned(owner)
        async with self._database.writing() as connection:
            row = await mine.named(connection, "batches", id, "batch_id", lock=True)
            batch = batch_of(row)
            if batch.status == "cancelling":
                return batch
            if batch.status not in CANCELLABLE:
                raise Conflict(f"The batch is {batch.status} already, so it cannot be cancelled", param="batch_id")
            if batch.status == "validating" and not _is_held(row, mine.now):
                return await self._write(connection, mine, batch, "cancelled", batch.facts, claim=None)
            return await self._write(connection, mine, batch, "cancelling", batch.facts)

    @uninterrupted("maintain")
    async def claim(self, token: str, can_work_on: Callable[[StoredBatch], bool]) -> BatchClaim | None:
        """Claims the oldest open batch that nobody works on and for which `can_work_on`; None where there is none."""
        batch = await self._oldest(can_work_on)
        if batch is None:
            return None
        async with self._database.writing() as connection:
            mine = self._owned(batch.owner)
            row = await mine.named(connection, "batches", batch.id, "batch_id", lock=True)
            if row.status not in OPEN or _is_held(row, mine.now):
                return None  # another instance was quicker
            its = mine.columns("batches")
            lease = mine.now + timedelta(seconds=LEASE_SECONDS)
            claimed = mine.update("batches").where(its.number == row.number).values(claim=token, lease_until=lease)
            await connection.execute(claimed)
            return BatchClaim(batch_of(row), token)

    @uninterrupted("write")
    async def renew(self, claim: BatchClaim, completed: int, failed: int) -> StoredBatch:
        """Renews the claim, and keeps the counts so far. Returns the batch as it is now. Raises Conflict where
        the claim is lost, NotFound where the batch is gone: its owner was erased."""
        async with self._database.writing() as connection:
            mine, batch = await self._held(connection, claim)
            facts = replace(batch.facts, completed=completed, failed=failed)
            lease = mine.now + timedelta(seconds=LEASE_SECONDS)
            return await self._write(connection, mine, batch, batch.status, facts, lease_until=lease)

    @uninterrupted("maintain")
    async def advance(self, claim: BatchClaim, status: str, /, **changes: Any) -> StoredBatch:
        """Gives the batch its next status and changes facts of it; an end frees it. A batch that its owner cancels
        meanwhile goes no way but to `cancelled`: then nothing changes. Raises Conflict where the claim is lost,
        NotFound where the batch is gone."""
        async with self._database.writing() as connection:
            mine, batch = await self._held(connection, claim)
            if batch.status == "cancelling" and status != "cancelled":
                return batch
            freed = {} if status in OPEN else {"claim": None}
            return await self._write(connection, mine, batch, status, replace(batch.facts, **changes), **freed)

    @uninterrupted("maintain")
    async def end(self, claim: BatchClaim, status: str, files: Sequence[StoredFile], /, **changes: Any) -> StoredBatch:
        """Does as `advance`, and stores the rows of the batch's output files in the same transaction: an owner that is
        erased meanwhile gets no file."""
        async with self._database.writing() as connection:
            await self._database.lock(connection, "files")
            mine, batch = await self._held(connection, claim)
            if batch.status == "cancelling" and status != "cancelled":
                return batch
            if files:
                await mine.insert(connection, "files", [asdict(file) for file in files])
            return await self._write(connection, mine, batch, status, replace(batch.facts, **changes), claim=None)

    @uninterrupted("maintain")
    async def open_ids(self) -> set[str]:
        """Returns the ids of every owner's open batches."""
        async with self._database.reading() as connection:
            return await everyone.ids_of_open_batches(connection)

    @uninterrupted("maintain")
    async def bytes_of_files(self) -> int:
        """Returns the bytes of every owner's files, beside which the outputs of batches find their room."""
        async with self._database.reading() as connection:
            return await everyone.bytes_of_files(connection)

    @uninterrupted("maintain")
    async def release(self, claim: BatchClaim) -> None:
        """Gives the claim up, so that another worker need not wait. A claim that is lost already is no error."""
        mine = self._owned(claim.batch.owner)
        its = mine.columns("batches")
        held = its.id == claim.batch.id, its.claim == claim.token
        async with self._database.writing() as connection:
            await connection.execute(mine.update("batches").where(*held).values(claim=None))

    @uninterrupted("maintain")
    async def present(self) -> dict[str, int]:
        """Returns how many batches of all owners there are, by status."""
        async with self._database.reading() as connection:
            return await everyone.counts(connection)

    async def _oldest(self, can_work_on: Callable[[StoredBatch], bool]) -> StoredBatch | None:
        now, after = self._owned("").now, None
        async with self._database.reading() as connection:
            while True:
                rows = (await connection.execute(everyone.free_batches(now, after).limit(_LOOKED_AT))).all()
                workable = next(filter(can_work_on, map(batch_of, rows)), None)
                if workable is not None or len(rows) < _LOOKED_AT:
                    return workable
                after = rows[-1].created_at, rows[-1].number

    async def _held(self, connection: AsyncConnection, claim: BatchClaim) -> tuple[Owned, StoredBatch]:
        mine = self._owned(claim.batch.owner)
        row = await mine.named(connection, "batches", claim.batch.id, "batch_id", lock=True)
        if row.claim != claim.token:
            raise Conflict("Another instance works on this batch, since this one showed no sign of life")
        return mine, batch_of(row)

    async def _write(
        self, connection: AsyncConnection, mine: Owned, batch: StoredBatch, status: str, facts: BatchFacts, **more: Any
    ) -> StoredBatch:
        if status != batch.status:
            facts = replace(facts, times={**facts.times, status: int(mine.now.timestamp())})
        values = {"status": status, "facts": asdict(facts), **more}
        changed = mine.update("batches").where(mine.columns("batches").id == batch.id).values(values)
        await connection.execute(changed)
        return replace(batch, status=status, facts=facts)


def _is_held(row: Row[Any], now: datetime) -> bool:
    """Returns whether a worker has the batch, and shows signs of life."""
    return row.claim is not None and bool(row.lease_until > now)


def batch_of(row: Row[Any]) -> StoredBatch:
    moments: tuple[datetime, datetime] = row.created_at, row.expires_at
    return StoredBatch(
        row.id, row.owner, row.status, row.input_file_id, *moments, BatchFacts(**row.facts), row.lease_until
    )
