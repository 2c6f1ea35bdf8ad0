"""This module upgrades a database to this version's schema at opening, safely where several instances start at once.

It imports Alembic only where there is something to upgrade: the import takes longer than the opening.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from service.storage.database.database import Database
from service.storage.database.unusable import UnusableDatabase

HEAD: Final = "0013"
_SCRIPTS: Final = Path(__file__).parent / "migrations"


class NewerDatabase(UnusableDatabase):
    """A newer version of the service wrote the database, so this version must not touch it."""


async def upgrade(database: Database) -> None:
    """Upgrades the database. Raises NewerDatabase, or what `failures` says."""
    async with database.reading() as connection:
        if await connection.run_sync(_version) == HEAD:
            return
    async with database.writing() as connection:
        await database.lock(connection, "migration")
        await connection.run_sync(_upgrade)


def _version(connection: Connection) -> str | None:
    """Returns the database's revision; None before the first."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCRIPTS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    present = _version(connection)
    if present is not None and present not in known:
        raise NewerDatabase(
            f"The session database is at revision {present}, this version knows none above {HEAD}: "
            "run the newer version, or restore a backup from before it"
        )
    command.upgrade(config, "head")
