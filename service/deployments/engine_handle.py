"""An engine handle shares one engine among all deployments of one base: the version itself and the adapters made for
it.

    demo:1 ──────────┐
    demo:2 (adapter) ┼─▶ one engine; a request names its adapter
    demo:3 (adapter) ┘

The first deployment to load starts the engine from its own directory; every version's directory holds the base's files.
The others join once that directory was found to be as published; else one of them starts another engine. The engine
ends when the last deployment leaves. The module knows no files and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from models.manifest import Manifest
from models.repository.disk.leases import Lease
from models.repository.repository import Repository
from service.deployments.engine_options import EngineOptions
from service.deployments.leasing import leased
from service.deployments.needs import loaded_bytes
from service.engine.client.engine import Engine, EngineFailed, EngineState, not_ready
from service.engine.kinds.options import DOSIRAK
from service.engine.protocol.messages import EngineInfo, EngineStats, Profile, Profiled, Request, StepOutput, StepRecord
from service.host import for_replicas
from service.tasks import Unbroken

EngineFactory = Callable[[Manifest, int, EngineOptions], Engine]
"""Makes the engine of one version, not yet started. The arguments are its manifest, the bytes that the KV caches of the
engines beside it may take in all, and its options."""


class SharedEngines:
    """The engines of all deployments, by the digest of their base. It lives in the event loop."""

    def __init__(self, repository: Repository, make: EngineFactory, devices: tuple[str, ...] = ()) -> None:
        """`devices` are those that the settings name one by one, for the replicas of our own engine."""
        self._repository = repository
        self._devices = devices
        self._make = make
        self._groups: dict[str, _Group] = {}

    def engine(self, manifest: Manifest, options: EngineOptions) -> EngineHandle:
        """Returns the version's handle on its base's engine, not yet started; an engine that it starts has these
        `options`."""
        return EngineHandle(self, manifest, options)

    def options_of(self, manifest: Manifest) -> EngineOptions | None:
        """Returns the options of the engine that the version would join; None where it would start its own."""
        group = self._living(manifest)
        return group.options if group else None

    def starters(self) -> tuple[Manifest, ...]:
        return tuple(group.starter.manifest for group in tuple(self._groups.values()))

    def needed_bytes(self, manifest: Manifest, draft: Manifest | None = None) -> int:
        """Returns the memory that loading the version, and its draft version, adds to the memory in use."""
        if self._living(manifest):
            return manifest.adapter_bytes
        return loaded_bytes(manifest.size + (draft.size if draft else 0))

    def trust(self, manifest: Manifest) -> None:
        """Records that the version is loaded and its files are as published. If it is the starter of an engine, the
        others may join."""
        group = self._groups.get(manifest.base_digest)
        if group is not None and group.starter.manifest == manifest:
            group.trusted = True
            group.settled.set()

    def _living(self, manifest: Manifest) -> _Group | None:
        group = self._groups.get(manifest.base_digest)
        return None if group is None or group.engine.state is EngineState.FAILED else group

    def enter(self, handle: EngineHandle, options: EngineOptions) -> _Group:
        """Adds the handle to the group of its base, and returns the group. In a new group it is the starter."""
        manifest = handle.manifest
        group = self._living(manifest)
        if group is None:
            options = replace(options, devices=self._placed(options))
            group = _Group(self._make(manifest, self._promised_bytes(), options), handle, options)
            self._groups[manifest.base_digest] = group
        group.members.append(handle)
        return group

    async def leave(self, handle: EngineHandle, group: _Group, grace: float) -> None:
        """Removes the handle from its group. The engine ends with its last member, and with a starter whose files were
        not found good."""
        group.members.remove(handle)
        if group.members and (group.trusted or group.starter is not handle):
            return
        if self._groups.get(handle.manifest.base_digest) is group:
            del self._groups[handle.manifest.base_digest]
        try:
            await group.engine.stop(grace)
        finally:
            group.settled.set()
            await group.taking.ended()
            for lease in group.leases:
                lease.release()

    async def lease(self, group: _Group) -> None:
        """Keeps the files that the group's processes read from being deleted, until its last member leaves."""
        for version in (group.starter.manifest, group.options.draft):
            if version is not None:
                await group.taking.finish(self._take(group, version))

    async def _take(self, group: _Group, version: Manifest) -> None:
        group.leases.append(await leased(self._repository, version))

    def directory(self, manifest: Manifest) -> str:
        return str(self._repository.path(manifest))

    def _placed(self, options: EngineOptions) -> tuple[str, ...]:
        """Returns the devices as `EngineOptions` has them; () where the settings name none, or not for this engine."""
        if options.kind.name != DOSIRAK:
            return ()
        busy = [device for group in self._groups.values() for device in group.devices]
        return for_replicas(self._devices, options.replicas, busy)

    def _promised_bytes(self) -> int:
        loaded = [group.engine.info for group in self._groups.values()]
        return sum(info.kv_cache_bytes for info in loaded if info)


@dataclass(slots=True, eq=False)
class _Group:
    """One engine, the directory that it reads, and the handles that use it."""

    engine: Engine
    starter: EngineHandle
    options: EngineOptions
    members: list[EngineHandle] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    """The leases of the files that a restarted engine process reads again."""
    taking: Unbroken = field(default_factory=Unbroken)
    """Takes the leases, each to its end: one that came after the end of a load that was cut would still be held."""
    trusted: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def devices(self) -> list[str]:
        """Returns the devices of its replicas; those of a divided one are all that it has layers on."""
        if self.options.replicas == 1 and self.options.devices and self.engine.info is not None:
            return self.engine.info.device.split(",")
        return list(self.options.devices[: self.options.replicas])


class EngineHandle:
    """The engine as one deployment sees it. The deployment's adapter, if it has one, computes its requests."""

    def __init__(self, shared: SharedEngines, manifest: Manifest, options: EngineOptions) -> None:
        self.manifest = manifest
        self._shared = shared
        self._options = options
        self.adapter = manifest.digest if manifest.has_adapter else ""
        self._group: _Group | None = shared.enter(self, options)
        self._joined = self._group.starter is self
        self._may_have_adapter = self._joined
        """Whether the engine may have its adapter."""

    @property
    def _engine(self) -> Engine | None:
        """Returns the engine; None before this handle has joined and after it has left."""
        return self._group.engine if self._group is not None and self._joined else None

    @property
    def info(self) -> EngineInfo | None:
        return self._engine.info if self._engine else None

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats if self._engine else EngineStats()

    @property
    def recent_steps(self) -> Sequence[StepRecord]:
        return self._engine.recent_steps if self._engine else ()

    @property
    def state(self) -> EngineState:
        if self._group is None:
            return EngineState.STOPPED
        return self._engine.state if self._engine else EngineState.LOADING

    @property
    def why_not_ready(self) -> str:
        return self._engine.why_not_ready if self._engine else ""

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self._engine else None

    @property
    def restarts(self) -> int:
        return self._engine.restarts if self._engine else 0

    @property
    def silent_seconds(self) -> float:
        return self._engine.silent_seconds if self._engine else 0.0

    @property
    def replicas(self) -> Sequence[Engine]:
        return self._engine.replicas if self._engine else ()

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        """Starts the engine, or waits for it and joins. Raises EngineFailed, Unavailable."""
        while (group := self._group) is not None and group.starter is not self:
            await group.settled.wait()
            if group.trusted:
                await self._join(group)
                return
            group.members.remove(self)
            self._group = self._shared.enter(self, self._options)
            self._joined = self._may_have_adapter = self._group.starter is self
        if group is not None:
            await self._shared.lease(group)
            await group.engine.start(on_loading)

    async def _join(self, group: _Group) -> None:
        if self.adapter:
            self._may_have_adapter = True
            await group.engine.load_adapter(self.adapter, self._shared.directory(self.manifest))
        self._joined = True

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """Does as Engine.generate, with this version's adapter. Ends with EngineFailed once this handle has left."""
        adapted = replace(request, adapter=self.adapter) if self.adapter else request
        async with aclosing(self._running_engine().generate(adapted)) as outputs:
            async for output in outputs:
                if self._group is None:
                    raise EngineFailed("the engine was stopped before this answer was done")
                yield output

    async def load_adapter(self, name: str, directory: str) -> None:
        """Does as Engine.load_adapter, for the whole engine."""
        await self._running_engine().load_adapter(name, directory)

    def _running_engine(self) -> Engine:
        """Returns the engine. Raises Unavailable before this handle has joined and after it has left."""
        if self._engine is None:
            raise not_ready(self.state)
        return self._engine

    def unload_adapter(self, name: str) -> None:
        if self._engine is not None:
            self._engine.unload_adapter(name)

    async def profile(self, order: Profile) -> Profiled:
        """Does as Engine.profile, for the whole engine: its steps compute all versions of the base."""
        return await self._running_engine().profile(order)

    async def stop(self, grace: float = 0.0) -> None:
        """Leaves the engine, which ends with its last member."""
        group, self._group = self._group, None
        if group is None:
            return
        others = {handle.adapter for handle in group.members if handle is not self}
        if self._may_have_adapter and self.adapter and self.adapter not in others:
            group.engine.unload_adapter(self.adapter)
        await self._shared.leave(self, group, grace)
