"""Deployments are all versions being served: they load on demand, swap and drain. The module knows no HTTP and no text.

resolve(reference) ─▶ Manifest ─▶ acquire ─▶ Deployment (loaded once for all requests that come at the same time)

The module follows an alias that moves. The new version loads beside the old one. The old one answers until the new one
is ready, and goes on where the new one cannot be loaded; else it finishes its requests and frees its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from models.manifest import Manifest
from models.repository.repository import Repository
from models.repository.rollouts import Rollout
from service.deployments.activity import Activity
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.drafts import Drafts
from service.deployments.engine_handle import EngineFactory
from service.deployments.engine_kinds import Kinds
from service.deployments.engine_options import EngineOptions
from service.deployments.loaded_versions import LOAD, UNLOAD, LoadedVersions
from service.deployments.rollouts import WITHDRAW, Rollouts
from service.deployments.routing import Router
from service.deployments.wanted import Wanted, WantedDeployments
from service.engine.client.engine import Engine
from service.engine.kinds.kinds import EngineKind
from service.engine.kinds.options import DOSIRAK
from service.errors import Conflict, DosirakError, NoEngine, NotFound, Unavailable
from service.tasks import BackgroundTasks, KeptTask

log = structlog.get_logger(__name__)

START: Final = "start"
FOLLOW_ALIASES: Final = "follow_aliases"
UNLOAD_IDLE: Final = "unload_idle"
TASKS: Final = (START, FOLLOW_ALIASES, UNLOAD_IDLE, WITHDRAW, LOAD, UNLOAD)

_WATCH_SECONDS = 1.0
_RETRY_SECONDS = 60.0
"""The time between two tries to load an alias's version, while another version answers for it. It is also the longest
time between two tries to load the default model; the first is `_FIRST_RETRY_SECONDS`."""
_FIRST_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The deployment that answers one request; `note` is for a conversation that was moved to it."""

    deployment: Deployment
    rollout: Rollout | None = None
    note: str = ""


def _no_engine(_manifest: Manifest, _promised_bytes: int, _options: EngineOptions) -> Engine:
    raise NoEngine


def _refuse_other(manifest: Manifest, running: EngineOptions, wanted: EngineOptions) -> None:
    """Raises Conflict where the version, or another one of its base, runs otherwise than wanted."""
    deployed = f"{manifest.reference}, or another version of its base, is deployed"
    if wanted.replicas != running.replicas:
        raise Conflict(f"{deployed} with {running.replicas} replicas: unload it first")
    if wanted.draft not in (None, running.draft):
        drafter = f"draft model {running.drafted_by}" if running.draft else "no draft model"
        raise Conflict(f"{deployed} with {drafter}: unload it first", param="draft")
    if wanted.kind != running.kind:
        options = " and other options" if wanted.kind.name == running.kind.name else ""
        raise Conflict(f"{deployed} with the engine {running.kind.name}{options}: unload it first", param="engine")


class Deployments:
    """The event loop owns Deployments. `prepare` runs once before the first load (it fills an empty repository).
    `engine_factory` None: nothing can be loaded here, and everything that needs a loaded version is refused.
    `devices` are those that replicas of our own engine are divided among; `default_replicas` None: one on each."""

    def __init__(
        self,
        repository: Repository,
        engine_factory: EngineFactory | None,
        *,
        default_model: str,
        default_replicas: int | None = 1,
        devices: tuple[str, ...] = (),
        default_draft: str | None = None,
        kinds: Kinds | None = None,
        preload: bool = True,
        load_timeout: float = 300.0,
        drain_timeout: float = 30.0,
        idle_timeout: float = 0.0,
        prepare: Callable[[], Awaitable[None]] | None = None,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        self.repository = repository
        self._router = Router(repository, default_model)
        self._default_replicas = default_replicas
        self._devices = devices
        self._drafts = Drafts(self._router.resolve, default_draft)
        self._kinds = kinds or Kinds()
        self._preload = preload
        self._load_timeout = load_timeout
        self._idle_timeout = idle_timeout
        self._prepare = prepare
        self._standing: dict[str, Deployment] = {}
        """By reference without a version: the deployment that answers until the reference's new version is ready."""
        self._trials: set[str] = set()
        self._tasks = tasks or BackgroundTasks()
        self.rollouts = Rollouts(repository, self._tasks)
        self._wanted = WantedDeployments(repository)
        self._has_engine = engine_factory is not None
        self._loaded = LoadedVersions(repository, engine_factory or _no_engine, drain_timeout, self._tasks, devices)
        self._following: KeptTask | None = None
        self._unloading: KeptTask | None = None
        self._prepared = asyncio.Event()
        self._stopping = False
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._phase = "starting"

    @property
    def phase(self) -> str:
        """Returns how far the start is, or what keeps the server from being ready after it."""
        lost = self._following is not None and self._following.is_failing
        return "aliases cannot be followed; the log says why" if lost else self._phase

    @property
    def ready(self) -> bool:
        """Returns whether a request for the default model would be served now: its engine process runs, and aliases can
        be followed. Without preloading it is also true before the first request for that model. A server without an
        engine is ready for everything else."""
        if self._stopping or not self._prepared.is_set():
            return False
        if not self._has_engine:
            return True
        if self._following is not None and self._following.is_failing:
            return False
        try:
            deployment = self.answering(None)
        except DosirakError:
            return False
        if deployment is None or deployment.state is DeploymentState.LOADING:
            return not self._preload
        return deployment.is_serving

    @property
    def why_not_ready(self) -> str:
        """Returns a clause that says why `ready` is false."""
        with contextlib.suppress(DosirakError):
            default = self.answering(None)
            if default is not None and default.cause:
                return default.cause
            manifest = self.resolve(None)
            try:
                self._drafts.default(manifest)
            except DosirakError as error:
                return f"no draft model: {error.message}"
            try:
                self._kinds.require(self._kinds.default, manifest, self.repository)
            except DosirakError as error:
                return error.message
        return self.phase

    def answering(self, reference: str | None) -> Deployment | None:
        """Returns the deployment for requests that name `reference` (None: no model); None before it is loaded. Raises
        DosirakError."""
        standing = self._standing.get(self._router.moving(reference) or "")
        if standing is not None and standing.state is DeploymentState.READY:
            return standing
        return self._loaded.get(self._router.resolve(reference).reference)

    @property
    def has_engine(self) -> bool:
        return self._has_engine

    async def start(self) -> None:
        """Returns at once; preparing the repository and loading the default model go on in the background."""
        self._tasks.retry(START, self._start)

    async def stop(self) -> None:
        """Refuses new work, lets answers in flight finish within the drain time, ends every engine process."""
        self._stopping = True
        await self._tasks.stop(TASKS)
        await self._loaded.drain_all()
        self._standing.clear()

    def resolve(self, reference: str | None) -> Manifest:
        """Returns the version that `reference` means now. Raises InvalidRequest or NotFound."""
        return self._router.resolve(reference)

    async def acquire(self, reference: str | None) -> Deployment:
        """Returns the serving deployment of `reference`, and loads it first where it is not loaded; waits at most the
        load timeout.

        Raises NotFound, InvalidRequest, or Unavailable (loading, draining, failed, shutting down).
        """
        self._refuse_when_unable()
        if not self._prepared.is_set():
            raise Unavailable(f"The server is starting ({self.phase}); try again shortly", retry_after=2)
        while True:
            moving = self._router.moving(reference)
            deployment = self._follow(moving) if moving else self._begin_loading(self.resolve(reference))
            if deployment.state is DeploymentState.READY:
                return deployment
            await deployment.settled(self._load_timeout)

    async def choose(self, reference: str | None, conversation: str | None = None) -> Choice:
        """Does as `acquire`; where the reference's alias has a rollout, the candidate answers its share of
        conversations (`conversation` is an opaque key; None for none)."""
        deployment = await self.acquire(reference)
        alias = self._router.alias_of(reference)
        if alias is None:
            return Choice(deployment)
        rollout = self.rollouts.of(*alias)
        if rollout is not None and deployment.manifest.version == rollout.base:
            candidate = self._on_trial(rollout)
            if candidate is not None and self.rollouts.choose(rollout, conversation):
                deployment = candidate
        version = deployment.manifest.version
        return Choice(deployment, rollout, self.rollouts.settle(*alias, conversation, version))

    async def load(
        self,
        reference: str | None,
        replicas: int | None = None,
        draft: str | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, int | str] | None = None,
    ) -> Deployment:
        """Begins to load a version, with the version `draft` as its draft model and on the engine of this name, or
        returns its existing deployment; it stays until it is unloaded by name. A failed deployment is tried again.
        Raises Conflict for a deployment that has another number of replicas, another draft model or another engine, and
        for an engine that is not installed; InvalidRequest for a draft model or an engine that cannot be."""
        self._refuse_when_unable()
        manifest = self.resolve(reference)
        drafting = None if draft is None else self._drafts.named(manifest, draft)
        kind = await self._kinds.named(engine, engine_options)
        running = self._loaded.options_of(manifest)
        if running is not None:
            _refuse_other(
                manifest, running, EngineOptions(replicas or running.replicas, drafting, kind or running.kind)
            )
        if self._wanted.are_shared:
            wanted = Wanted(replicas, drafting.reference if drafting else None, engine, engine_options)
            await asyncio.to_thread(self._wanted.put, manifest, wanted)
            self._wanted.followed(manifest.reference, wanted)
        deployment = self._begin_loading(manifest, replicas, drafting, kind)
        deployment.pinned = True
        return deployment

    def keep_alive(self, deployment: Deployment, seconds: float) -> None:
        """From now on a deployment is unloaded after so many idle seconds, instead of the server's idle time; with
        infinity, never. What never counts as idle stays all the same."""
        deployment.keep_alive, deployment.used_at = seconds, time.monotonic()
        if not self._stopping:
            self._watch_idle()

    def seconds_to_unload(self, deployment: Deployment) -> float:
        """Returns for how long a deployment stays if no request comes: infinity where it stays for good, 0 while it
        drains. The default model, a rollout's candidate and a deployment that was loaded by its own name never count as
        idle."""
        if deployment.state is DeploymentState.DRAINING:
            return 0.0
        if deployment.pinned or self._is_on_trial(deployment) or self._is_default(deployment):
            return math.inf
        limit = (self._idle_timeout or math.inf) if deployment.keep_alive is None else deployment.keep_alive
        return limit if deployment.in_flight else max(0.0, deployment.used_at + limit - time.monotonic())

    def follow_all(self) -> None:
        """Loads the versions that the references in use point to now. Where a version cannot be loaded, its
        deployment's state says so, and the present version goes on. Raises OSError where the repository cannot be
        read."""
        if self._stopping or not self._has_engine:
            return
        for reference in tuple(self._standing):
            with contextlib.suppress(DosirakError):
                self._follow(reference)
        self.rollouts.refresh()
        trials = {rollout.reference for rollout in self.rollouts.all()}
        for rollout in self.rollouts.all():
            self._on_trial(rollout)
        for ended in self._trials - trials:
            if (deployment := self._loaded.get(ended)) is not None:
                self._retire(deployment)
        self._trials = trials

    async def unload(self, reference: str) -> Deployment:
        """Drains one exact version and ends its process. Returns at once; `state` says how far it is.

        Raises NotFound when it is not deployed, Conflict when it is still loading.
        """
        deployment = self._loaded.get(self.resolve(reference).reference)
        if deployment is None:
            raise NotFound(f"{reference} is not deployed; GET /v1/deployments lists what is", param="model")
        if deployment.state is DeploymentState.LOADING:
            raise Conflict(f"{reference} is still loading; delete the deployment when it is ready")
        if self._wanted.are_shared:
            await asyncio.to_thread(self._wanted.put, deployment.manifest, None)
        self._forget(deployment)
        self._loaded.begin_unloading(deployment, by_name=True)
        return deployment

    async def _follow_wanted(self) -> None:
        """Loads and unloads what another instance was asked to."""
        if not self._wanted.are_shared:
            return
        wanted, gone = self._wanted.changes()
        for reference, options in wanted.items():
            with contextlib.suppress(DosirakError):  # its files are on their way
                manifest = self.resolve(reference)
                draft = None if options.draft is None else self._drafts.named(manifest, options.draft)
                kind = await self._kinds.named(options.engine, options.engine_options)
                self._begin_loading(manifest, options.replicas, draft, kind).pinned = True
                self._wanted.followed(reference, options)
        for reference in gone:
            deployment = self._loaded.get(reference)
            if deployment is not None and deployment.state is DeploymentState.READY:
                self._forget(deployment)
                self._loaded.begin_unloading(deployment, by_name=True)

    def describe(self) -> list[dict[str, object]]:
        """Returns the `data` of `GET /v1/deployments`."""
        return [deployment.describe() for deployment in self.all()]

    @property
    def activity(self) -> Activity:
        """Says whether any version answers or loads."""
        return self._loaded.activity

    def served(self) -> tuple[Manifest, ...]:
        """Returns the versions that would answer a request at once."""
        return tuple(each.manifest for each in self.all() if each.is_serving)

    def all(self) -> tuple[Deployment, ...]:
        """Returns every deployment in any state, oldest first."""
        return self._loaded.all()

    def _follow(self, reference: str) -> Deployment:
        """Returns the deployment that now answers for a reference without a version. Begins to load the reference's
        target where that does not serve; where it does, drains the deployment before it."""
        standing = self._standing.get(reference)
        try:
            target = self.resolve(reference)
        except Unavailable:  # the version that the reference means now is damaged on disk
            if standing is None or standing.state is not DeploymentState.READY:
                raise
            return standing
        wanted = self._loaded.get(target.reference)
        if wanted is not None and wanted.state is DeploymentState.READY:
            self._standing[reference] = wanted
            if standing is not None and standing is not wanted:
                log.info(
                    "reference_switched",
                    reference=reference,
                    model=target.reference,
                    before=standing.manifest.reference,
                )
                self._retire(standing)
            return wanted
        if standing is None or standing.state is not DeploymentState.READY:
            return self._begin_loading(target)
        if wanted is None or (wanted.state is DeploymentState.FAILED and wanted.failed_for(_RETRY_SECONDS)):
            self._begin_loading(target)
        return standing

    def _on_trial(self, rollout: Rollout) -> Deployment | None:
        """Returns the candidate if it can answer now. Begins to load it, and rolls it back where it cannot be
        loaded."""
        candidate = self._loaded.get(rollout.reference)
        if candidate is None:
            try:
                self._begin_loading(self.resolve(rollout.reference))
            except DosirakError as error:
                self.rollouts.withdraw(rollout, error.message)
            return None
        if candidate.state is DeploymentState.FAILED:
            self.rollouts.withdraw(rollout, f"it could not be loaded: {candidate.failure}")
        return candidate if candidate.state is DeploymentState.READY else None

    def _begin_loading(
        self,
        manifest: Manifest,
        replicas: int | None = None,
        draft: Manifest | None = None,
        kind: EngineKind | None = None,
    ) -> Deployment:
        """Does as LoadedVersions.begin_loading. Where no number of replicas and no draft model is given, versions of
        the default model get the default ones, whichever alias or swap leads to them, and others get one replica and
        no draft model. Where no engine is given, all get the default one."""

        def options() -> EngineOptions:
            wanted = EngineOptions(replicas or 1, draft, kind or self._kinds.default)
            if manifest.name == self._router.default_name:
                drafting = draft or self._drafts.default(manifest)
                wanted = EngineOptions(replicas or self._replicas(wanted.kind), drafting, wanted.kind)
            self._kinds.require(wanted.kind, manifest, self.repository, wanted.draft, wanted.replicas)
            return wanted

        return self._loaded.begin_loading(manifest, options)

    def _replicas(self, kind: EngineKind) -> int:
        """Returns the default model's number of replicas where a request names none."""
        if self._default_replicas is not None:
            return self._default_replicas
        return len(self._devices) if kind.name == DOSIRAK else 1

    def _retire(self, deployment: Deployment) -> None:
        """Drains a deployment that no alias leads to any more, unless it was loaded by its own name."""
        if deployment.pinned or deployment in self._standing.values() or self._is_on_trial(deployment):
            return
        if deployment.state is DeploymentState.READY:
            self._loaded.begin_unloading(deployment)

    async def _follow_moved(self) -> None:
        """Checks the aliases once: other processes move them as well."""
        await asyncio.sleep(_WATCH_SECONDS)
        self.follow_all()
        await self._follow_wanted()
        self._retry_default()

    async def _unload_idle(self) -> None:
        """Unloads, in one pass, the deployments that no request has used for the idle time."""
        await asyncio.sleep(_WATCH_SECONDS)
        for deployment in self.all():
            if self._is_idle(deployment):
                self._forget(deployment)
                self._loaded.begin_unloading(deployment)

    def _retry_default(self) -> None:
        """Loads the default model if it is missing or if its load has failed: a server that is not ready gets no
        request that would load it. A default model that a caller has unloaded stays unloaded until a request wants
        it."""
        if not self._preload:
            return
        with contextlib.suppress(DosirakError):
            default, manifest = self.answering(None), self.resolve(None)
            if default is not None and default.is_serving:
                self._retry_seconds = _FIRST_RETRY_SECONDS
            is_missing = default is None and not self._loaded.was_unloaded(manifest.reference)
            if is_missing or (default is not None and default.failed_for(self._retry_seconds)):
                self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS)
                self._begin_loading(manifest)

    def _is_idle(self, deployment: Deployment) -> bool:
        """Returns whether no request has used the deployment for its idle time."""
        if deployment.state is not DeploymentState.READY or deployment.in_flight:
            return False
        return self.seconds_to_unload(deployment) == 0

    def _is_default(self, deployment: Deployment) -> bool:
        with contextlib.suppress(DosirakError):
            return deployment is self.answering(None)
        return False

    def _is_on_trial(self, deployment: Deployment) -> bool:
        return any(rollout.reference == deployment.manifest.reference for rollout in self.rollouts.all())

    def _forget(self, deployment: Deployment) -> None:
        self._standing = {at: each for at, each in self._standing.items() if each is not deployment}

    def _refuse_when_unable(self) -> None:
        if not self._has_engine:
            raise NoEngine
        if self._stopping:
            raise Unavailable("The server is shutting down; send the request to another instance", retry_after=5)

    async def _start(self) -> None:
        if not self._prepared.is_set():
            await self._fill_repository()
            self.rollouts.refresh()
            self._prepared.set()
        if not self._has_engine:
            self._phase = "started without an engine"
            return
        self._phase = "loading the default model"
        if self._preload:
            with contextlib.suppress(DosirakError):
                await self.acquire(None)
        self._phase = "started"
        self._following = self._tasks.keep(FOLLOW_ALIASES, self._follow_moved)
        if self._idle_timeout:
            self._watch_idle()

    def _watch_idle(self) -> None:
        if self._unloading is None:
            self._unloading = self._tasks.keep(UNLOAD_IDLE, self._unload_idle)

    async def _fill_repository(self) -> None:
        if self._prepare is None:
            return
        self._phase = "preparing the model repository"
        try:
            await self._prepare()
        except Exception as error:  # serving the present versions is better than not starting; the reason is logged
            log.error("repository_not_prepared", reason=str(error))
