"""Records are what several servers must agree on: journals of aliases, rollouts, and who uses a version.

`FileRecords` keeps them in one data directory, for the processes of one machine. `service.storage.records` keeps them
in PostgreSQL, for all instances that use it. This module knows names and bytes, and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from models.repository.disk import durable, journal
from models.repository.disk.journal import Entry, History
from models.repository.disk.layout import Layout
from models.repository.disk.listing import matching
from models.repository.disk.remembered import Remembered


class Records(Protocol):
    """Safe to use from many threads. A document is one record that a change replaces whole; its name is
    `<model>/<rest>`. Where records are shared, every method raises Unreachable while they cannot be had."""

    @property
    def shared(self) -> bool:
        """Whether instances with other data directories see the same records."""

    @property
    def database_id(self) -> str | None:
        """The id of the database that instances share; None where the records are files."""

    def locked(self, name: str, timeout: float) -> AbstractContextManager[None]:
        """One writer of a model at a time. Raises Conflict where another keeps it longer than `timeout` seconds."""

    def history(self, name: str) -> History:
        """Raises Corrupt."""

    def append(self, name: str, entry: Entry) -> None:
        """Adds an entry to a model's journal, durably. The caller holds the model's lock."""

    def documents(self, kind: str) -> list[str]:
        """The names of the documents of a kind, sorted."""

    def document(self, kind: str, name: str) -> bytes | None:
        """The content of a document; None where there is none."""

    def put_document(self, kind: str, name: str, content: bytes | None) -> None:
        """Replaces a document, or removes it, durably. The caller holds the model's lock."""

    def lease(self, name: str, version: str) -> Callable[[], None]:
        """Tells other instances that this process uses a version, until the returned function is called. Raises
        NotFound for a version that another instance has deleted."""

    def refuse_leased(self, name: str, version: str) -> None:
        """Raises Conflict while a living instance uses the version. The caller holds the model's lock."""


class FileRecords:
    """Records in the files of one data directory. Leases are locks on its versions (`leases`), so none are here."""

    shared = False
    database_id = None

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._journals = Remembered(History.read)

    def locked(self, name: str, timeout: float) -> AbstractContextManager[None]:
        return durable.locked(self._layout.lock(name), timeout)

    def history(self, name: str) -> History:
        try:
            return self._journals.of(self._layout.journal(name))
        except FileNotFoundError:
            return History.of(())

    def names(self) -> list[str]:
        """The models that have a journal."""
        return sorted(path.stem for path in self._layout.journals.glob("*.jsonl"))

    def append(self, name: str, entry: Entry) -> None:
        journal.append(self._layout.journal(name), entry)

    def documents(self, kind: str) -> list[str]:
        return sorted(f"{path.parent.name}/{path.stem}" for path in matching(self._directory(kind), "*/*.json"))

    def document(self, kind: str, name: str) -> bytes | None:
        try:
            return self._path(kind, name).read_bytes()
        except FileNotFoundError:
            return None

    def put_document(self, kind: str, name: str, content: bytes | None) -> None:
        path = self._path(kind, name)
        if content is None:
            durable.remove(path)
            return
        durable.make_directory(path.parent)
        durable.replace(path, content)

    def lease(self, name: str, version: str) -> Callable[[], None]:
        return lambda: None

    def refuse_leased(self, name: str, version: str) -> None:
        return

    def _directory(self, kind: str) -> Path:
        return self._layout.data_dir / kind

    def _path(self, kind: str, name: str) -> Path:
        model, _, rest = name.partition("/")
        return self._directory(kind) / model / f"{rest}.json"
