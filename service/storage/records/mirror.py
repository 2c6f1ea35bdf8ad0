"""A mirror is the copy in memory that reads of shared records come from. It knows rows and no database.

Rows come in the order of their numbers, each once or more often; a row that the mirror has seen changes nothing. A copy
on the disk is what an instance begins with where the database is away at its start.

Local records are those in the files of one data directory: what of them the mirror can take over, and what nobody
reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from models.errors import RepositoryError
from models.repository import rollouts
from models.repository.disk import durable
from models.repository.disk.journal import Entry, History, line_of
from models.repository.disk.records import FileRecords
from service.storage import keys

JOURNAL: Final = "journal"
COPY: Final = "records.json"


class Row(NamedTuple):
    """One change. `content` is an entry's line or a document; None where a document was removed."""

    revision: int
    kind: str
    name: str
    content: str | None


class _Copy(msgspec.Struct):
    database_id: str
    revision: int
    rows: list[Row]


class Mirror:
    """One thread applies rows, and any thread reads: each read is of one dictionary's entry, replaced whole."""

    def __init__(self, database_id: str) -> None:
        self.database_id = database_id
        self.revision = 0
        self._histories: dict[str, History] = {}
        self._documents: dict[tuple[str, str], bytes] = {}

    def apply(self, rows: Iterable[Row]) -> None:
        """Takes in changes, in the order of their numbers."""
        added: dict[str, list[Entry]] = {}
        documents = dict(self._documents)
        revision = self.revision
        for row in rows:
            if row.revision <= self.revision:
                continue
            revision = max(revision, row.revision)
            if row.kind == JOURNAL:
                added.setdefault(row.name, []).append(msgspec.json.decode(row.content or "", type=Entry))
            elif row.content is None:
                documents.pop((row.kind, row.name), None)
            else:
                documents[row.kind, row.name] = row.content.encode()
        for name, entries in added.items():
            self._histories[name] = History.of((*self.history(name).entries, *entries))
        self._documents = documents
        self.revision = revision

    def history(self, name: str) -> History:
        return self._histories.get(name) or History.of(())

    def names(self) -> list[str]:
        """The models that have a journal."""
        return sorted(self._histories)

    def documents(self, kind: str) -> list[str]:
        return sorted(name for each, name in self._documents if each == kind)

    def document(self, kind: str, name: str) -> bytes | None:
        return self._documents.get((kind, name))

    def save(self, directory: Path) -> None:
        """Writes the copy."""
        rows = [
            Row(self.revision, JOURNAL, name, msgspec.json.encode(entry).decode())
            for name, history in sorted(self._histories.items())
            for entry in history.entries
        ]
        rows += [Row(self.revision, *key, content.decode()) for key, content in sorted(self._documents.items())]
        durable.replace(directory / COPY, msgspec.json.encode(_Copy(self.database_id, self.revision, rows)))

    @classmethod
    def saved(cls, directory: Path) -> Mirror | None:
        """Returns the mirror that the copy holds; None where there is no whole copy."""
        try:
            copy = msgspec.json.decode((directory / COPY).read_bytes(), type=_Copy)
        except (OSError, msgspec.MsgspecError):
            return None
        mirror = cls(copy.database_id)
        mirror.apply(copy.rows)
        mirror.revision = copy.revision
        return mirror


def changes_of(files: FileRecords) -> Iterator[tuple[str, str, str | None]]:
    """Yields what a data directory holds of records, as changes."""
    for name in files.names():
        for entry in files.history(name).entries:
            yield JOURNAL, name, line_of(entry).decode()
    for kind in (rollouts.ROLLOUTS, keys.KIND):
        for document in files.documents(kind):
            content = files.document(kind, document)
            yield kind, document, None if content is None else content.decode()


def unread(files: FileRecords, mirror: Mirror) -> list[str]:
    """Returns the models whose journal in the data directory is no part of the shared one: nobody reads it."""
    return [name for name in files.names() if not _is_part(files, name, mirror.history(name))]


def _is_part(files: FileRecords, name: str, shared: History) -> bool:
    try:
        entries = files.history(name).entries
    except RepositoryError:
        return False
    return shared.entries[: len(entries)] == entries
