"""The package shares records between instances: aliases, rollouts, wanted deployments, and who uses which version.

    threads ── SharedRecords ── mirror (reads)
                    └── link, in an event loop of its own ══ PostgreSQL (changes, LISTEN, a look every second)

With SQLite as database nothing is shared, and records stay files of the data directory.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from models import __version__, opening
from models.repository import Repository
from models.storage.layout import Layout
from service.records.presence import Identity, Instance, Role
from service.records.shared import SharedRecords
from service.settings import Settings

__all__ = ["Identity", "Instance", "SharedRecords", "open_repository"]


def open_repository(settings: Settings, role: Role = "command") -> Repository:
    """Returns the repository of the data directory, with the records of all instances where the database is
    PostgreSQL, and with the versions of all instances where there is a store. Raises as `models.opening` does."""
    return opening.open_repository(settings.data_dir, settings.store, _records(settings, role))


def _records(settings: Settings, role: Role) -> SharedRecords | None:
    if not settings.shares_records:
        return None
    opened = _of_command if role == "command" else _opened
    return opened(settings.session_database, settings.data_dir, role)


def _opened(url: str, data_dir: Path, role: Role) -> SharedRecords:
    layout = Layout(data_dir)
    layout.make()
    return SharedRecords(url, layout, Identity(role, __version__))


_of_command = cache(_opened)
"""One command opens its records once, however often it asks for the repository."""
