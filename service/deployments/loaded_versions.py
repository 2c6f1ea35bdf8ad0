"""LoadedVersions holds at most one deployment of each exact version: it loads and drains them in background tasks. It
knows no alias and no rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.activity import Activity
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.engine_handle import EngineFactory, SharedEngines
from service.deployments.engine_options import EngineOptions
from service.deployments.memory import Memory
from service.errors import Unavailable
from service.tasks import BackgroundTasks

log = structlog.get_logger(__name__)

LOAD: Final = "load"
UNLOAD: Final = "unload"


class LoadedVersions:
    """The event loop owns the deployments here, in any state, from the begin of a load to the end of a drain."""

    def __init__(
        self,
        repository: Repository,
        engine_factory: EngineFactory,
        drain_timeout: float,
        tasks: BackgroundTasks,
        devices: tuple[str, ...] = (),
    ) -> None:
        self.activity = Activity()
        self._repository = repository
        self._memory = Memory()
        self._engines = SharedEngines(repository, engine_factory, devices)
        self._drain_timeout = drain_timeout
        self._tasks = tasks
        self._by_reference: dict[str, Deployment] = {}
        self._unloaded: set[str] = set()
        """Versions that a caller unloaded by name and that no request has wanted since."""
        self._drains: dict[Deployment, asyncio.Task[None]] = {}
        self.is_stopping = False

    def get(self, reference: str) -> Deployment | None:
        """Returns the deployment of an exact version, as in `demo:2`."""
        return self._by_reference.get(reference)

    def all(self) -> tuple[Deployment, ...]:
        """Returns every deployment in any state, oldest first."""
        return tuple(self._by_reference.values())

    def was_unloaded(self, reference: str) -> bool:
        """Returns whether a caller unloaded this version by name and no request has wanted it since."""
        return reference in self._unloaded

    def options_of(self, manifest: Manifest) -> EngineOptions | None:
        """Returns what the version, or another version of its base, runs with; None if none is loaded."""
        return self._engines.options_of(manifest)

    def starters(self) -> tuple[Manifest, ...]:
        """Returns the versions that have started an engine which runs."""
        return self._engines.starters()

    def begin_loading(self, manifest: Manifest, options: Callable[[], EngineOptions]) -> Deployment:
        """Returns the version's deployment; begins to load it, with `options`, where it is missing or has failed.
        Raises Unavailable while it drains and from `stop` on, and the errors of `options`."""
        if self.is_stopping:
            raise shutting_down()
        deployment = self._by_reference.get(manifest.reference)
        if deployment is not None and deployment.state is DeploymentState.DRAINING:
            raise Unavailable(f"{manifest.reference} is draining; try again shortly", retry_after=2)
        self._unloaded.discard(manifest.reference)
        if deployment is None or deployment.state is DeploymentState.FAILED:
            chosen = options()
            running = self.options_of(manifest)
            used, own = running or chosen, 0 if running else chosen.kind.own_bytes
            needed = self._engines.needed_bytes(manifest, used.draft) + own
            engine = self._engines.engine(manifest, chosen)
            failed = deployment
            deployment = Deployment(manifest, engine, needed, self.activity, used, self._memory)
            deployment.pinned = failed is not None and failed.pinned
            self._by_reference[manifest.reference] = deployment
            self._tasks.run(LOAD, partial(self._load, deployment))
        return deployment

    def begin_unloading(self, deployment: Deployment, by_name: bool = False) -> None:
        """Begins to drain a deployment; it is gone when its answers have ended. `by_name`: a caller asked for it."""
        if by_name:
            self._unloaded.add(deployment.manifest.reference)
        self._drain(deployment)

    def stop(self) -> None:
        """Begins no load any more."""
        self.is_stopping = True

    async def drain_all(self) -> None:
        """Drains every deployment at once, and returns when the last process has ended."""
        await asyncio.gather(*map(self._drain, self.all()))
        self._by_reference.clear()

    def _drain(self, deployment: Deployment) -> asyncio.Task[None]:
        """Returns the one task that drains a deployment. It is closed before that task runs: nothing chooses it
        meanwhile."""
        if (task := self._drains.get(deployment)) is None:
            deployment.close()
            task = self._drains[deployment] = self._tasks.run(UNLOAD, partial(self._unload, deployment))
            task.add_done_callback(lambda _: self._drains.pop(deployment))
        return task

    async def _load(self, deployment: Deployment) -> None:
        manifest = deployment.manifest
        try:
            with self.activity.busy():
                await deployment.load(self._repository)
        except Exception:  # handling the failure failed as well; waiting requests must not wait for ever
            deployment.settle(DeploymentState.FAILED, "loading it failed; the server's log says why")
            raise
        if deployment.state is DeploymentState.READY:
            self._engines.trust(manifest)
            if manifest.better_recipe:
                log.warning("older_recipe", model=manifest.reference, reason=manifest.better_recipe)
        log.info(
            "deployment_" + deployment.state.value,
            model=manifest.reference,
            digest=manifest.short_digest,
            seconds=round(deployment.load_seconds, 3),
            reason=deployment.failure or None,
        )

    async def _unload(self, deployment: Deployment) -> None:
        try:
            with self._memory.freeing(deployment.taken_bytes):
                await deployment.drain(self._drain_timeout)
        except Exception:  # a failed drain must not prevent the next load
            self._remove(deployment)
            raise
        self._remove(deployment)
        log.info("deployment_unloaded", model=deployment.manifest.reference)

    def _remove(self, deployment: Deployment) -> None:
        if self._by_reference.get(deployment.manifest.reference) is deployment:
            del self._by_reference[deployment.manifest.reference]


def shutting_down() -> Unavailable:
    return Unavailable("The server is shutting down; send the request to another instance", retry_after=5)
