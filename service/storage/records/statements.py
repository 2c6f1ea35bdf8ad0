"""These statements read and change the tables of shared records, on a connection to PostgreSQL. They know no thread and
no mirror; a caller translates the database's errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.functions import FunctionElement

from service.storage.database.record_tables import instances, leases, record_state, records
from service.storage.records.mirror import JOURNAL, Row
from service.storage.records.presence import LIVING_SECONDS, SERVER, Identity, Instance

CHANNEL: Final = "dosirak_records"
FORGOTTEN: Final = timedelta(minutes=1)
"""After so long without a heartbeat an instance's row goes."""
_NOW: Final = func.clock_timestamp()
_IS_LIVING: Final = instances.c.beat_at > _NOW - timedelta(seconds=LIVING_SECONDS)


@dataclass(frozen=True, slots=True)
class State:
    """Which database this is, the number of its last change, and its clock."""

    database_id: str
    revision: int
    now: datetime


def lock_of(name: str) -> FunctionElement[int]:
    """Returns the number of a model's advisory lock."""
    return func.hashtextextended(f"records\x1f{name}", 0)


async def state(connection: AsyncConnection) -> State:
    row = (await connection.execute(select(record_state.c.database_id, record_state.c.revision, _NOW))).one()
    return State(*row)


async def since(connection: AsyncConnection, revision: int) -> list[Row]:
    """Returns the changes behind number `revision`, in their order: one statement, so one moment."""
    columns = records.c.revision, records.c.kind, records.c.name, records.c.content
    found = await connection.execute(select(*columns).where(records.c.revision > revision).order_by(records.c.revision))
    return [Row(*row) for row in found]


async def write(connection: AsyncConnection, changes: Iterable[tuple[str, str, str | None]]) -> None:
    """Makes changes (kind, name, content) and tells every listener, in the caller's transaction."""
    revision = 0
    for kind, name, content in changes:
        taken = update(record_state).values(revision=record_state.c.revision + 1).returning(record_state.c.revision)
        revision = (await connection.execute(taken)).scalar_one()
        if kind != JOURNAL:
            await connection.execute(delete(records).where(records.c.kind == kind, records.c.name == name))
        await connection.execute(insert(records).values(revision=revision, kind=kind, name=name, content=content))
    await connection.execute(select(func.pg_notify(CHANNEL, str(revision))))


async def beat(connection: AsyncConnection, identity: Identity, state: str) -> bool:
    """Tells that an instance is there. Returns whether its row was missing, and with it its leases. A heartbeat that a
    crash of the database loses is no loss, so it does not wait for the disk."""
    await connection.execute(text("SET LOCAL synchronous_commit = off"))
    values = {"state": state, "beat_at": _NOW}
    seen = await connection.execute(update(instances).where(instances.c.id == identity.id).values(values))
    if seen.rowcount:
        return False
    row = {"id": identity.id, "role": identity.role, "software": identity.software, "started_at": _NOW}
    await connection.execute(insert(instances).values(**row, **values))
    return True


async def forget_dead(connection: AsyncConnection) -> None:
    await connection.execute(delete(instances).where(instances.c.beat_at < _NOW - FORGOTTEN))


async def leave(connection: AsyncConnection, id: str) -> None:
    await connection.execute(delete(instances).where(instances.c.id == id))


async def put_leases(connection: AsyncConnection, id: str, held: Sequence[tuple[str, str]]) -> None:
    """Makes `held` the versions that an instance uses."""
    known = {(row.name, row.version) for row in await connection.execute(select(leases).where(leases.c.instance == id))}
    for name, version in known - set(held):
        its = leases.c.instance == id, leases.c.name == name, leases.c.version == version
        await connection.execute(delete(leases).where(*its))
    for name, version in set(held) - known:
        row = {"instance": id, "name": name, "version": version}
        await connection.execute(postgresql.insert(leases).values(row).on_conflict_do_nothing())


async def holders(connection: AsyncConnection, name: str, version: str, other_than: str) -> list[str]:
    """Returns the living instances that use a version."""
    joined = select(instances.c.id).join(leases, leases.c.instance == instances.c.id)
    its = leases.c.name == name, leases.c.version == version, instances.c.id != other_than
    return list((await connection.execute(joined.where(*its, _IS_LIVING).order_by(instances.c.id))).scalars())


async def servers(connection: AsyncConnection) -> list[Instance]:
    """Returns the servers that are known, oldest first, with the age of their heartbeats."""
    age = func.extract("epoch", _NOW - instances.c.beat_at)
    its = instances.c
    chosen = select(its.id, its.software, its.started_at, age, its.state).where(its.role == SERVER)
    found = await connection.execute(chosen.order_by(its.started_at, its.id))
    return [Instance(id, software, started, float(seconds), state) for id, software, started, seconds, state in found]
