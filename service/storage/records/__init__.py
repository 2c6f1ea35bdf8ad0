"""The package shares records between instances: aliases, rollouts, wanted deployments, and who uses which version.

    threads ── SharedRecords ── mirror (reads)
                    └── link, in an event loop of its own ══ PostgreSQL (changes, LISTEN, a look every second)

With SQLite as database nothing is shared, and records stay files of the data directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from models import __version__
from models.repository import moving as versions
from models.repository import opening
from models.repository.disk.layout import Layout
from models.repository.disk.records import FileRecords
from models.repository.repository import Repository
from models.repository.store.shared_store import Version
from service.settings import Settings
from service.storage.records import moving
from service.storage.records.moving import Moved
from service.storage.records.presence import Identity, Instance, Role
from service.storage.records.shared import SharedRecords

if TYPE_CHECKING:
    from service.storage.records.link import Adopt

__all__ = ["Identity", "Instance", "Moved", "SharedRecords", "database_id", "leave", "open_repository", "push"]
_of_this_command: dict[tuple[str, Path], SharedRecords] = {}
"""One command opens its records once, however often it asks for the repository."""


def open_repository(settings: Settings, role: Role = "command") -> Repository:
    """Returns the repository of the data directory, with the records of all instances where the database is
    PostgreSQL, and with the versions of all instances where there is a store. Raises as `models.repository.opening`
    does."""
    records = _records(settings, role)
    try:
        return opening.open_repository(settings.data_dir, settings.store, records)
    except BaseException:
        if records is not None and role == "server":  # it would go on saying that this instance is there
            records.close()
        raise


def leave() -> None:
    """Ends the connections of this command's records, as before it waits for a server that has its own. The repository
    that it opened changes nothing any more; a later `open_repository` gives another one."""
    while _of_this_command:
        _of_this_command.popitem()[1].close()


def push(settings: Settings) -> tuple[list[str], Moved]:
    """Moves the versions of the data directory to the store, then its journals and rollouts to the database, where
    there are these. Returns the versions' references and what was moved of the records. Raises as
    `models.repository.moving` and `models.repository.opening` do."""
    with _unmoved(settings) as records:
        repository = opening.open_unpushed(settings.data_dir, settings.store, records)
        pushed, published = list[str](), frozenset[Version]()
        if repository.mirror is not None:
            pushed = versions.push(repository)
            published = repository.mirror.store.listing().versions
        return pushed, moving.move(FileRecords(repository.layout), records, published) if records else Moved()


def database_id(settings: Settings) -> str | None:
    """Returns the id of the database that instances share; None for a data directory's own. Raises Unreachable."""
    with _unmoved(settings) as records:
        return records.database_id if records else None


@contextmanager
def _unmoved(settings: Settings) -> Iterator[SharedRecords | None]:
    """Gives the shared records to a command; an empty database takes nothing from the data directory by itself."""
    if not settings.shares_records:
        yield None
        return
    records = _opened(settings.session_database, settings.data_dir, "command", adopt=tuple)
    try:
        yield records
    finally:
        records.close()


def _records(settings: Settings, role: Role) -> SharedRecords | None:
    if not settings.shares_records:
        return None
    url, data_dir = settings.session_database, settings.data_dir
    if role == "server":
        return _opened(url, data_dir, role)
    if (url, data_dir) not in _of_this_command:
        _of_this_command[url, data_dir] = _opened(url, data_dir, role)
    return _of_this_command[url, data_dir]


def _opened(url: str, data_dir: Path, role: Role, **link: Adopt) -> SharedRecords:
    layout = Layout(data_dir)
    layout.make()
    return SharedRecords(url, layout, Identity(role, __version__), **link)
