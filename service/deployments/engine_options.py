"""The options of an engine say how the processes of a version are built. They are data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from models.manifest import Manifest
from service.engine.kinds.kinds import EngineKind


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`replicas` is the number of processes. `draft` is the version that makes drafts in each of them, if any. `kind`
    says whose engine they run. `devices` are those of the replicas, in order, where the settings name several; a single
    replica has the others behind its own, for a model that one device does not hold. `max_model_len` is the most
    positions of a sequence, 0 for the version's own number."""

    replicas: int = 1
    draft: Manifest | None = None
    kind: EngineKind = field(default_factory=EngineKind)
    devices: tuple[str, ...] = field(default=(), compare=False)
    max_model_len: int = 0

    def window(self, manifest: Manifest) -> int:
        """Returns the positions of one of the version's sequences."""
        return min(manifest.context_window, self.max_model_len or manifest.context_window)

    @property
    def drafted_by(self) -> str | None:
        """Returns the reference of the draft version."""
        return None if self.draft is None else self.draft.reference

    def of_replica(self, number: int) -> EngineOptions:
        """Returns the options with the devices of one replica."""
        return self if self.replicas == 1 else replace(self, devices=self.devices[number : number + 1])


DEFAULT_OPTIONS: Final = EngineOptions()
