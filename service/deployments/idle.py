"""Idle deployments are unloaded: after the server's idle time, or after that of a client that used them last."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Final

from service.deployments.default_model import DefaultModel
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.following import Following
from service.deployments.loaded_versions import LoadedVersions
from service.errors import DosirakError
from service.tasks import BackgroundTasks, KeptTask

UNLOAD_IDLE: Final = "unload_idle"
_WATCH_SECONDS = 1.0


class Idle:
    """The event loop owns it. It watches from the first `watch` on."""

    def __init__(
        self,
        loaded: LoadedVersions,
        following: Following,
        default: DefaultModel,
        idle_timeout: float,
        tasks: BackgroundTasks,
    ) -> None:
        self._loaded = loaded
        self._following = following
        self._default = default
        self._idle_timeout = idle_timeout
        self._tasks = tasks
        self._task: KeptTask | None = None

    def watch(self) -> None:
        if self._task is None:
            self._task = self._tasks.keep(UNLOAD_IDLE, self._unload_idle)

    def seconds_to_unload(self, deployment: Deployment) -> float:
        """Returns for how long a deployment stays if no request comes: infinity where it stays for good, 0 while it
        drains. The default model, a rollout's candidate and a deployment that was loaded by its own name never count as
        idle."""
        if deployment.state is DeploymentState.DRAINING:
            return 0.0
        if deployment.pinned or self._following.is_on_trial(deployment) or self._is_default(deployment):
            return math.inf
        limit = (self._idle_timeout or math.inf) if deployment.keep_alive is None else deployment.keep_alive
        return limit if deployment.in_flight else max(0.0, deployment.used_at + limit - time.monotonic())

    async def _unload_idle(self) -> None:
        await asyncio.sleep(_WATCH_SECONDS)
        self.unload()

    def unload(self) -> None:
        """Begins to unload the deployments that no request has used for the idle time."""
        for deployment in self._loaded.all():
            is_ready = deployment.state is DeploymentState.READY and not deployment.in_flight
            if is_ready and self.seconds_to_unload(deployment) == 0:
                self._following.unload(deployment)

    def _is_default(self, deployment: Deployment) -> bool:
        with contextlib.suppress(DosirakError):
            return deployment is self._default.deployed()
        return False
