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
    """A hub id `org/name` and a branch, a tag or a commit of it. `file` is what of its GGUF files is wanted: a file's
    name or a quantization's."""

    id: str
    revision: str = DEFAULT_REVISION
    file: str = ""

    def __post_init__(self) -> None:
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise InvalidSource(f"{self.revision[:80]!r} is no revision: give a branch, a tag or a commit")
        if self.file and (not _REVISION.fullmatch(self.file) or ".." in self.file):
            raise InvalidSource(f"{self.file[:80]!r} names no file: give a GGUF file, or a quantization such as Q4_K_M")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the source that `org/name`, `org/name:Q4_K_M` or one of them with `@revision` names; None for other
        text. Raises InvalidSource for a text whose revision or file is none."""
        place, at, revision = text.partition("@")
        id, _, file = place.partition(":")
        if not _ID.fullmatch(id) or ".." in id:
            return None
        return cls(id, revision if at else DEFAULT_REVISION, file)

    def __str__(self) -> str:
        return (
            self.without_revision if self.revision == DEFAULT_REVISION else f"{self.without_revision}@{self.revision}"
        )

    @property
    def without_revision(self) -> str:
        """The source without its revision."""
        return f"{self.id}:{self.file}" if self.file else self.id

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a whole commit, which never moves."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> str:
        """Returns the `lineage.source` of versions that are made of this commit."""
        return f"{self.without_revision}@{commit}"

    @property
    def slug(self) -> str:
        """The source as one plain file name."""
        return self.without_revision.replace("/", "--").replace(":", "--")
