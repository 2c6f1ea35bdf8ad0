"""The options of an engine say how the processes of a version are built. They are data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from models.manifest import Manifest
from service.engines.kinds import EngineKind


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`replicas` is the number of processes. `draft` is the version that makes drafts in each of them, if any. `kind`
    says whose engine they run."""

    replicas: int = 1
    draft: Manifest | None = None
    kind: EngineKind = field(default_factory=EngineKind)

    @property
    def drafted_by(self) -> str | None:
        """Returns the reference of the draft version."""
        return None if self.draft is None else self.draft.reference


DEFAULT_OPTIONS: Final = EngineOptions()
