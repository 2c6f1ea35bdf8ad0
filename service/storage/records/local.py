"""Local records are those in the files of one data directory, as the shared records see them: what can be taken over,
and what nobody reads."""

from __future__ import annotations

from collections.abc import Iterator

from models.errors import RepositoryError
from models.repository import rollouts
from models.repository.disk.journal import History, line_of
from models.repository.disk.records import FileRecords
from service.storage.records.mirror import JOURNAL, Mirror


def changes_of(files: FileRecords) -> Iterator[tuple[str, str, str | None]]:
    """Yields what a data directory holds of records, as changes."""
    for name in files.names():
        for entry in files.history(name).entries:
            yield JOURNAL, name, line_of(entry).decode()
    for document in files.documents(rollouts.ROLLOUTS):
        content = files.document(rollouts.ROLLOUTS, document)
        yield rollouts.ROLLOUTS, document, None if content is None else content.decode()


def unread(files: FileRecords, mirror: Mirror) -> list[str]:
    """Returns the models whose journal in the data directory is no part of the shared one: nobody reads it."""
    return [name for name in files.names() if not _is_part(files, name, mirror.history(name))]


def _is_part(files: FileRecords, name: str, shared: History) -> bool:
    try:
        entries = files.history(name).entries
    except RepositoryError:
        return False
    return shared.entries[: len(entries)] == entries
