"""Moving brings the journals and rollouts of a data directory into the shared records, for models that have no other
history there.

    here    a b c        shared   (none) or a       moved: the rest is added
    here    a b          shared   a b c             there already
    here    a b x        shared   a b c             kept: two histories, and to merge them would be a guess
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from models.errors import RepositoryError, Unreachable
from models.repository.disk.records import FileRecords
from models.repository.rollouts import ROLLOUTS
from models.repository.store.shared_store import Version
from service.storage.records.shared import SharedRecords

LOCK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Moved:
    """Journals that were moved, as model to number of entries; rollouts as `model/alias`; a sentence for each model
    whose records stay in the data directory alone."""

    entries: dict[str, int] = field(default_factory=dict)
    rollouts: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def move(files: FileRecords, records: SharedRecords, published: Collection[Version]) -> Moved:
    """Moves what is not there yet; `published` are the store's versions. Doing it again moves nothing. Raises
    Unreachable."""
    moved = Moved()
    for name in files.names():
        try:
            _move(name, files, records, published, moved)
        except Unreachable:
            raise
        except RepositoryError as error:
            moved.kept.append(f"{name}: {error}")
    return moved


def _move(name: str, files: FileRecords, records: SharedRecords, published: Collection[Version], moved: Moved) -> None:
    ours = files.history(name)
    with records.locked(name, LOCK_SECONDS):
        shared = records.history(name)
        common = min(len(ours.entries), len(shared.entries))
        if ours.entries[:common] != shared.entries[:common]:
            moved.kept.append(
                f"{name} has another history in the database: promote there what this data directory served"
            )
            return
        if gone := [version for version in ours.deleted - shared.deleted if (name, version) in published]:
            moved.kept.append(
                f"{name}:{gone[0]} was deleted here and is another instance's version in the store: import the model "
                "under another name"
            )
            return
        if rest := ours.entries[common:]:
            records.extend(name, rest)
            moved.entries[name] = len(rest)
        for document in files.documents(ROLLOUTS):
            if document.partition("/")[0] == name and records.document(ROLLOUTS, document) is None:
                records.put_document(ROLLOUTS, document, files.document(ROLLOUTS, document))
                moved.rollouts.append(document)
