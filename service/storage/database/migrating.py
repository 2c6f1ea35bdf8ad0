"""This module upgrades a database to this version's schema at opening, safely where several instances start at once.

It imports Alembic only where there is something to upgrade: the import takes longer than the opening.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from service.storage.database.database import Database
from service.storage.database.unusable import UnusableDatabase

if TYPE_CHECKING:
    from alembic.config import Config

HEAD: Final = "0013"
_SCRIPTS: Final = Path(__file__).parent / "migrations"


class NewerDatabase(UnusableDatabase):
    """A newer version of the service wrote the database, so this version must not touch it."""


class OlderDatabase(UnusableDatabase):
    """The database has not this version's schema yet, which the service makes at its start."""


async def upgrade(database: Database) -> None:
    """Upgrades the database. Raises NewerDatabase, or what `failures` says."""
    async with database.reading() as connection:
        if await connection.run_sync(_version) == HEAD:
            return
    async with database.unhurried() as patient, patient.writing() as connection:
        await patient.lock(connection, "migration")
        await connection.run_sync(_upgrade)


async def require_head(database: Database) -> None:
    """Changes nothing. Raises NewerDatabase, OlderDatabase, or what `failures` says."""
    async with database.reading() as connection:
        present = await connection.run_sync(_version)
    if present == HEAD:
        return
    _refuse_newer(present, _config())
    found = "has no tables yet" if present is None else f"is at revision {present}, and this version's is {HEAD}"
    raise OlderDatabase(f"The session database {found}: start the service once, which brings it there")


def _version(connection: Connection) -> str | None:
    """Returns the database's revision; None before the first."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = _config(connection)
    _refuse_newer(_version(connection), config)
    command.upgrade(config, "head")


def _config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCRIPTS))
    return config


def _refuse_newer(present: str | None, config: Config) -> None:
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if present is not None and present not in known:
        raise NewerDatabase(
            f"The session database is at revision {present}, this version knows none above {HEAD}: "
            "run the newer version, or restore a backup from before it"
        )
