"""A hub source is a repository of the hub and the revision that is wanted. It knows no network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from models.errors import InvalidSource

DEFAULT_REVISION: Final = "main"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A hub id `org/name` and a branch, a tag or a commit of it."""

    id: str
    revision: str = DEFAULT_REVISION

    def __post_init__(self) -> None:
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise InvalidSource(f"{self.revision[:80]!r} is no revision: give a branch, a tag or a commit")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the source that `org/name` or `org/name@revision` names; None for other text. Raises InvalidSource
        for a text whose revision is none."""
        id, at, revision = text.partition("@")
        if not _ID.fullmatch(id) or ".." in id:
            return None
        return cls(id, revision) if at else cls(id)

    def __str__(self) -> str:
        return self.id if self.revision == DEFAULT_REVISION else f"{self.id}@{self.revision}"

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a whole commit, which never moves."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> str:
        """Returns the `lineage.source` of versions that are made of this commit."""
        return f"{self.id}@{commit}"

    @property
    def slug(self) -> str:
        """The id as one plain file name."""
        return self.id.replace("/", "--")
