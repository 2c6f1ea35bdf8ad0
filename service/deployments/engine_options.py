"""The options of an engine say how the processes of a version are built. They are data."""

from __future__ import annotations

from dataclasses import dataclass

from models.manifest import Manifest


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`replicas` is the number of processes. `draft` is the version that makes drafts in each of them, if any."""

    replicas: int = 1
    draft: Manifest | None = None

    @property
    def drafted_by(self) -> str | None:
        """Returns the reference of the draft version."""
        return None if self.draft is None else self.draft.reference
