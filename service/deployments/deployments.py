"""Deployments are all versions being served: they load on demand, swap and drain. The module knows no HTTP and no text.

resolve         reference → version             loads nothing
deployed        reference → deployment or None  loads nothing
ensure_loaded   reference → deployment          loads it, and waits: once for all requests of the same time
choose_loaded   as ensure_loaded, for one conversation: a rollout's candidate answers its share
begin_loading   loads by a caller's order, and returns at once; `unload` is its opposite
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from models.errors import RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest, ModelReference
from models.repository.parsers import parsers_of
from models.repository.repository import Repository
from models.repository.rollouts import Rollout
from service.deployments import vllm_copies
from service.deployments.activity import Activity
from service.deployments.default_model import DefaultModel
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.engine_choice import NOTHING_NAMED, DeploymentSpec, EngineChoice, Kinds
from service.deployments.engine_handle import EngineFactory
from service.deployments.engine_options import EngineOptions
from service.deployments.following import Following
from service.deployments.idle import UNLOAD_IDLE, Idle
from service.deployments.loaded_versions import LOAD, LoadedVersions, shutting_down
from service.deployments.rollouts import WITHDRAW, Rollouts
from service.deployments.routing import Router
from service.deployments.wanted import WantedDeployments
from service.engine.client.engine import Engine
from service.errors import Conflict, DosirakError, NoEngine, NotFound, Unavailable
from service.tasks import BackgroundTasks, KeptTask

log = structlog.get_logger(__name__)

START: Final = "start"
FOLLOW_ALIASES: Final = "follow_aliases"
TASKS: Final = (START, FOLLOW_ALIASES, UNLOAD_IDLE, WITHDRAW, LOAD)

_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The deployment that answers one request; `note` is for a conversation that was moved to it. Where it is a
    rollout's candidate, the version before, `base`, answers what the candidate refuses."""

    deployment: Deployment
    rollout: Rollout | None = None
    note: str = ""
    base: Choice | None = None


def is_allowed(models: frozenset[str] | None, manifest: Manifest) -> bool:
    """Returns whether a caller of these `models`, names or `name:version`, may use a version. None allows all."""
    return models is None or not models.isdisjoint((manifest.name, manifest.reference))


def _no_engine(_manifest: Manifest, _promised_bytes: int, _options: EngineOptions) -> Engine:
    raise NoEngine


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
        max_model_len: int = 0,
    ) -> None:
        self.repository = repository
        self._router = Router(repository, default_model)
        self._choice = EngineChoice(
            self._router.resolve,
            repository,
            kinds or Kinds(),
            self._router.default_name,
            default_replicas,
            devices,
            default_draft,
            max_model_len,
        )
        self._preload = preload
        self._load_timeout = load_timeout
        self._prepare = prepare
        self._tasks = tasks or BackgroundTasks()
        self.rollouts = Rollouts(repository, self._tasks)
        self.has_engine = engine_factory is not None
        self._loaded = LoadedVersions(repository, engine_factory or _no_engine, drain_timeout, self._tasks, devices)
        self._following = Following(self._router, self._loaded, self.rollouts, self._begin_loading)
        self._by_name = WantedDeployments(repository, self._loaded, self._following, self._choice)
        self._default = DefaultModel(self._router, self._loaded, self._following, self._choice)
        self._idle = Idle(self._loaded, self._following, self._default, idle_timeout, self._tasks)
        self._unloads_idle = bool(idle_timeout)
        self._watching: KeptTask | None = None
        self._prepared = asyncio.Event()
        self._phase = "starting"

    @property
    def phase(self) -> str:
        """Returns how far the start is, or what keeps the server from being ready after it."""
        return "aliases cannot be followed; the log says why" if self._is_blind else self._phase

    @property
    def _is_blind(self) -> bool:
        return self._watching is not None and self._watching.is_failing

    @property
    def ready(self) -> bool:
        """Returns whether a request for the default model would be served now: its engine process runs, and aliases can
        be followed. Without preloading it is also true before the first request for that model. A server without an
        engine is ready for everything else."""
        if self._loaded.is_stopping or not self._prepared.is_set():
            return False
        if not self.has_engine:
            return True
        return not self._is_blind and self._default.is_served(by_loading=not self._preload)

    @property
    def why_not_ready(self) -> str:
        """Returns a clause that says why `ready` is false."""
        return self._default.failure or self.phase

    async def start(self) -> None:
        """Returns at once; preparing the repository and loading the default model go on in the background."""
        self._tasks.retry(START, self._start)

    async def stop(self) -> None:
        """Refuses new work, lets answers in flight finish within the drain time, ends every engine process."""
        self._loaded.stop()
        await self._tasks.stop(TASKS)
        await self._loaded.drain_all()

    def resolve(self, reference: str | None) -> Manifest:
        """Returns the version that `reference` means now (None: the default model). Raises InvalidRequest or
        NotFound."""
        return self._router.resolve(reference)

    def meant_by(self, name: str) -> Manifest | None:
        """Returns the version that a model's bare name means now; None where its files are missing here or damaged, or
        it has gone meanwhile. A list shows the other models all the same."""
        try:
            return self.resolve(name)
        except DosirakError:
            return None

    def allowed(self, models: frozenset[str] | None, reference: str | None) -> str | None:
        """Returns what a caller of these `models` means by `reference`. Where they may use single versions it is the
        version that `reference` means now: no candidate of a rollout answers in its place, nor the version before while
        this one loads. Raises NotFound where `is_allowed` is false for it."""
        if models is None:
            return reference
        manifest = self.resolve(reference)
        if not is_allowed(models, manifest):
            raise NotFound(
                f"There is no model {(reference or 'by default')[:80]!r} for this key; it may use "
                f"{', '.join(sorted(models))}",
                param="model",
            )
        return reference if manifest.name in models else manifest.reference

    def deployed(self, reference: str | None) -> Deployment | None:
        """Returns the deployment for requests that name `reference`; None before it is loaded. Raises DosirakError."""
        return self._following.deployed(self._router.parse(reference))

    def certain(self, reference: str | None) -> Deployment | None:
        """Returns the deployment that answers whoever names `reference` now; None where that one must load first, or a
        rollout may choose. Raises DosirakError."""
        if self._loaded.is_stopping or self.rollouts.all():
            return None
        return self._ready(reference)

    def is_loaded(self, reference: str | None) -> bool:
        """Returns whether `choose_loaded` returns at once; False where it raises."""
        with contextlib.suppress(DosirakError):
            return self._ready(reference) is not None
        return False

    def _ready(self, reference: str | None) -> Deployment | None:
        deployment = self.deployed(reference)
        return deployment if deployment is not None and deployment.state is DeploymentState.READY else None

    async def ensure_loaded(self, reference: str | None) -> Deployment:
        """Returns the serving deployment of `reference`, and loads it first where it is not loaded; waits at most the
        load timeout.

        Raises NotFound, InvalidRequest, or Unavailable (loading, draining, failed, shutting down).
        """
        return await self._ensure_loaded(self._parse_when_able(reference))

    async def choose_loaded(self, reference: str | None, conversation: str | None = None) -> Choice:
        """Does as `ensure_loaded`; where the reference's alias has a rollout, the candidate answers its share of
        conversations (`conversation` is an opaque key; None for none)."""
        parsed = self._parse_when_able(reference)
        deployment = await self._ensure_loaded(parsed)
        if parsed.version is not None:
            return Choice(deployment)
        alias = parsed.name, parsed.alias or DEFAULT_ALIAS
        rollout, base = self.rollouts.of(*alias), None
        if rollout is not None and deployment.manifest.version == rollout.base:
            candidate = self._following.candidate(rollout)
            if candidate is not None and self.rollouts.choose(rollout, conversation):
                base, deployment = Choice(deployment, rollout), candidate
        version = deployment.manifest.version
        return Choice(deployment, rollout, self.rollouts.settle(*alias, conversation, version), base)

    async def begin_loading(
        self,
        reference: str | None,
        replicas: int | None = None,
        draft: str | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, int | str] | None = None,
        max_model_len: int | None = None,
    ) -> Deployment:
        """Begins to load a version, with the version `draft` as its draft model and on the engine of this name, or
        returns its existing deployment; it stays until it is unloaded by name. A failed deployment is tried again.
        Raises Conflict for a deployment that has another number of replicas, another draft model, window or engine, and
        for an engine that is not installed; InvalidRequest for a draft model or an engine that cannot be."""
        self._refuse_when_unable()
        spec = DeploymentSpec(replicas, draft, engine, engine_options, max_model_len)
        return await self._by_name.begin_loading(self.resolve(reference), spec)

    async def settled(self, reference: str, state: DeploymentState) -> None:
        """Waits while the server starts, and then while the version that `reference` means is LOADING, or DRAINING; for
        each the load timeout at most. Raises InvalidRequest or NotFound."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._load_timeout):
                await self._prepared.wait()
        deployment = self._loaded.get(self.resolve(reference).reference)
        if deployment is not None and deployment.state is state:
            with contextlib.suppress(Unavailable):
                await deployment.settled(self._load_timeout)

    async def unload(self, reference: str) -> Deployment:
        """Drains one exact version and ends its process. Returns at once; `state` says how far it is.

        Raises NotFound when it is not deployed, Conflict while it loads, or is the candidate of a rollout.
        """
        deployment = self._loaded.get(self.resolve(reference).reference)
        if deployment is None:
            raise NotFound(f"{reference} is not deployed; GET /v1/deployments lists what is", param="model")
        if deployment.state is DeploymentState.LOADING:
            raise Conflict(f"{reference} is still loading; delete the deployment when it is ready")
        if self._following.is_on_trial(deployment):
            raise Conflict(f"{reference} is the candidate of a rollout, which loads it again: abort the rollout first")
        await self._by_name.unload(deployment)
        return deployment

    def keep_alive(self, deployment: Deployment, seconds: float) -> None:
        """From now on a deployment is unloaded after so many idle seconds, instead of the server's idle time; with
        infinity, never. What never counts as idle stays all the same."""
        deployment.keep_alive, deployment.used_at = seconds, time.monotonic()
        if not self._loaded.is_stopping:
            self._idle.watch()

    def seconds_to_unload(self, deployment: Deployment) -> float:
        """Does as Idle.seconds_to_unload."""
        return self._idle.seconds_to_unload(deployment)

    def window(self, manifest: Manifest) -> int:
        """Returns the positions of one of the version's sequences, as it is deployed or would be."""
        deployed = self._loaded.get(manifest.reference)
        return deployed.window if deployed else EngineOptions(max_model_len=self._choice.max_model_len).window(manifest)

    def follow_all(self) -> None:
        """Loads the versions that the references in use mean now. Raises OSError where the repository cannot be
        read."""
        if self.has_engine and not self._loaded.is_stopping:
            self._following.load_moved()

    async def follow_parsers(self) -> None:
        """Reads the answers of loaded versions as their parsers say now."""
        for deployment in self.all():
            with contextlib.suppress(RepositoryError):
                deployment.read_as(await asyncio.to_thread(parsers_of, self.repository, deployment.manifest))

    def delete(self, name: str, version: str, reason: str = "", actor: str = "") -> None:
        """Removes a version for good, and the copies that vLLM reads. Raises as Repository.delete. Any thread may call
        it."""
        self.repository.delete(name, version, reason, actor)
        vllm_copies.sweep(self.repository)

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

    def observed(self) -> tuple[Manifest, ...]:
        """Returns the versions that are deployed, and those that have started an engine which others still use."""
        return (*(each.manifest for each in self.all()), *self._loaded.starters())

    def all(self) -> tuple[Deployment, ...]:
        """Returns every deployment in any state, oldest first."""
        return self._loaded.all()

    def _parse_when_able(self, reference: str | None) -> ModelReference:
        self._refuse_when_unable()
        if not self._prepared.is_set():
            raise Unavailable(f"The server is starting ({self.phase}); try again shortly", retry_after=2)
        return self._router.parse(reference)

    async def _ensure_loaded(self, reference: ModelReference) -> Deployment:
        end = time.monotonic() + self._load_timeout
        while True:
            if reference.version is None:
                deployment = self._following.begin_loading(reference)
            else:
                deployment = self._begin_loading(self._router.resolve(reference))
            if deployment.state is DeploymentState.READY:
                return deployment
            try:
                await deployment.settled(end - time.monotonic())
            except Unavailable:
                if self._router.resolve(reference).reference == deployment.manifest.reference:
                    raise  # else the reference has moved on meanwhile

    def _begin_loading(self, manifest: Manifest) -> Deployment:
        """Does as LoadedVersions.begin_loading, with the options of the settings. What is idle leaves it its memory."""
        if self._loaded.get(manifest.reference) is None:
            self._idle.unload()
        return self._loaded.begin_loading(manifest, lambda: self._choice.options(manifest, NOTHING_NAMED))

    async def _follow_moved(self) -> None:
        """Checks the aliases once: other processes move them as well."""
        await asyncio.sleep(_WATCH_SECONDS)
        self.follow_all()
        await self._by_name.follow()
        await self.follow_parsers()
        if self._preload:
            self._default.retry()

    def _refuse_when_unable(self) -> None:
        if not self.has_engine:
            raise NoEngine
        if self._loaded.is_stopping:
            raise shutting_down()

    async def _start(self) -> None:
        if not self._prepared.is_set():
            await self._fill_repository()
            await asyncio.to_thread(vllm_copies.sweep, self.repository)
            self.rollouts.refresh()
            self._prepared.set()
        if not self.has_engine:
            self._phase = "started without an engine"
            return
        self._phase = "loading the default model"
        if self._preload:
            with contextlib.suppress(DosirakError):
                await self.ensure_loaded(None)
        self._phase = "started"
        self._watching = self._tasks.keep(FOLLOW_ALIASES, self._follow_moved)
        if self._unloads_idle:
            self._idle.watch()

    async def _fill_repository(self) -> None:
        if self._prepare is None:
            return
        self._phase = "preparing the model repository"
        try:
            await self._prepare()
        except Exception as error:  # serving the present versions is better than not starting; the reason is logged
            log.error("repository_not_prepared", reason=str(error))
