"""These models describe the list of servers that share records."""

from __future__ import annotations

from service.api.operations.answer_schemas import DeploymentState
from service.api.shared.answer_schemas import Shown


class LoadedVersion(Shown):
    model: str
    digest: str
    state: DeploymentState


class InstanceShown(Shown):
    """A server. `this` marks the one that answers. `ready` and `loaded` are what it told with its last heartbeat;
    without a heartbeat for six seconds it is not `living`."""

    id: str
    software: str
    this: bool
    started_at: str
    heartbeat_seconds: float
    living: bool
    ready: bool
    loaded: list[LoadedVersion]


class InstanceList(Shown):
    data: list[InstanceShown]
