"""A profile is a record of some steps of a version's engine, as it is stored and shown. Each has its own directory.

    data_dir/profiles/<name>/<version>/<id>/profile.json, trace.json.gz

This module knows files, and no engine.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from models.manifest import Manifest, ModelReference
from models.repository.disk import durable
from models.repository.disk.journal import timestamp
from models.repository.disk.layout import Layout
from models.repository.disk.listing import matching
from service.errors import NotFound
from service.observability.profiles.trace import Operator
from service.observability.profiles.worker import TRACE

Kind = Literal["operators", "memory", "stacks"]
State = Literal["queued", "running", "succeeded", "failed"]
MOST_KEPT: Final = 20
"""The profiles that a version keeps, the newest."""
_ID: Final = re.compile(r"profile-[0-9a-f]{32}")
_FILE: Final = "profile.json"


class Profile(msgspec.Struct, frozen=True):
    """`steps` were asked for, `steps_done` recorded; `tokens` and `seconds` are of the recorded steps. `operators` is
    None until it has succeeded."""

    id: str
    model: str
    digest: str
    kind: Kind
    state: State
    steps: int
    created_at: str
    steps_done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    ended_at: str | None = None
    error: str | None = None
    operators: list[Operator] | None = None

    @classmethod
    def new(cls, manifest: Manifest, steps: int, kind: Kind) -> Profile:
        id = f"profile-{uuid.uuid4().hex}"
        return cls(id, manifest.reference, manifest.short_digest, kind, "queued", steps, now())

    @property
    def ended(self) -> bool:
        return self.state in ("succeeded", "failed")


def now() -> str:
    return timestamp(datetime.now(UTC))


class ProfileFiles:
    """All profiles of a data directory. After a crash each file is whole or absent."""

    def __init__(self, data_dir: Path) -> None:
        self._layout = Layout(data_dir)

    def directory(self, profile: Profile) -> Path:
        reference = ModelReference.parse(profile.model)
        return self._layout.profiles_of(reference.name, reference.version or "") / profile.id

    def add(self, profile: Profile) -> None:
        """Stores a new profile, while none is being made. Removes the version's oldest ones past MOST_KEPT."""
        self.drop_pieces()
        durable.make_directory(self.directory(profile))
        self.put(profile)
        kept = self._read(matching(self.directory(profile).parent, f"*/{_FILE}"))
        for old in _newest_first(kept)[MOST_KEPT:]:
            shutil.rmtree(self.directory(old), ignore_errors=True)

    def drop_pieces(self) -> None:
        """Removes what a profile left that did not come to its end."""
        for path in matching(self._layout.profiles, "*/*/*/piece-*"):
            path.unlink(missing_ok=True)

    def put(self, profile: Profile) -> None:
        """Stores a profile again. Raises FileNotFoundError where its version was deleted."""
        durable.replace(self.directory(profile) / _FILE, msgspec.json.encode(profile))

    def all(self) -> list[Profile]:
        """Returns the profiles of all versions, newest first; skips a file that is no profile."""
        return _newest_first(self._read(matching(self._layout.profiles, f"*/*/*/{_FILE}")))

    def get(self, id: str) -> Profile:
        """Returns a profile. Raises NotFound."""
        paths = matching(self._layout.profiles, f"*/*/{id}/{_FILE}") if _ID.fullmatch(id) else ()
        found = next(self._read(paths), None)
        if found is None:
            raise NotFound(f"There is no profile {id[:80]!r}; GET /v1/profiles lists what there is", param="id")
        return found

    def trace(self, profile: Profile) -> Path:
        """Returns the place of its trace, compressed."""
        return self.directory(profile) / TRACE

    @staticmethod
    def _read(paths: Iterable[Path]) -> Iterator[Profile]:
        for path in paths:
            try:
                yield msgspec.json.decode(path.read_bytes(), type=Profile)
            except (OSError, msgspec.DecodeError):
                continue


def _newest_first(profiles: Iterator[Profile]) -> list[Profile]:
    return sorted(profiles, key=lambda each: (each.created_at, each.id), reverse=True)
