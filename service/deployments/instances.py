"""Instances are the servers that share records. This server tells the others every second how it is, and lists them.

Where nothing is shared, it lists itself.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, Final

from models import __version__
from service.deployments.deployment import Deployment
from service.deployments.deployments import Deployments
from service.storage.records import Identity, Instance, SharedRecords
from service.tasks import BackgroundTasks

TELL: Final = "tell_instances"
TELL_SECONDS: Final = 1.0


class Instances:
    """The event loop owns it."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments
        records = deployments.repository.records
        self._records = records if isinstance(records, SharedRecords) else None
        self._identity = self._records.identity if self._records else Identity("server", __version__)
        self._started = datetime.now(UTC)

    @property
    def id(self) -> str:
        """Returns the id of this server, another one after each start."""
        return self._identity.id

    @property
    def unfit(self) -> str | None:
        """Returns a sentence that says why this server must not answer beside the others; None where it may."""
        return self._records.unfit if self._records else None

    def start(self, tasks: BackgroundTasks) -> None:
        if self._records is not None:
            tasks.keep(TELL, self._tell)

    async def stop(self) -> None:
        """Leaves the list, so that others need not wait for the heartbeat to end."""
        if self._records is not None:
            await asyncio.to_thread(self._records.close)

    async def all(self) -> list[dict[str, Any]]:
        """Returns every server that is known, oldest first. Raises Unreachable."""
        if self._records is None:
            return [self._shown(Instance(self.id, __version__, self._started, 0.0, json.dumps(self._state())))]
        return [self._shown(each) for each in await asyncio.to_thread(self._records.servers)]

    async def _tell(self) -> None:
        if self._records is not None:
            self._records.tell(self._state())
        await asyncio.sleep(TELL_SECONDS)

    def _state(self) -> dict[str, Any]:
        ready = self._deployments.ready and self.unfit is None
        return {"ready": ready, "loaded": [_loaded(each) for each in self._deployments.all()]}

    def _shown(self, instance: Instance) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(instance.state)
        return {
            "id": instance.id,
            "software": instance.software,
            "this": instance.id == self.id,
            "started_at": instance.started_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "heartbeat_seconds": round(instance.age, 3),
            "living": instance.is_living,
            "ready": instance.is_living and state.get("ready", False),
            "loaded": state.get("loaded", []),
        }


def _loaded(deployment: Deployment) -> dict[str, str]:
    manifest = deployment.manifest
    return {
        "model": manifest.reference,
        "digest": manifest.short_digest,
        "state": deployment.shown_state.value,
    }
