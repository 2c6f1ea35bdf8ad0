"""This module starts the engines of candidates, keeps those that memory has room for, and ends all. It sends no load.

An engine without requests takes no processor time, so a kept one disturbs none that is measured. Kept engines take at
most half of the memory that was free at the beginning; the one that was used the longest ago goes first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.deployments.engine_options import EngineOptions
from service.deployments.needs import ENGINE_BYTES, loaded_bytes
from service.engine.client.client import EngineClient
from service.engine.client.engine import Engine
from service.engine.client.replicas import Replicas
from service.engine.client.supervisor import PackedWeights, nowhere
from service.environment import engine_environment
from service.errors import DosirakError
from service.evaluation.tuning.driving import Broken
from service.evaluation.tuning.field import Candidate
from service.host import available_memory, for_replicas, usable_cores
from service.settings import Settings

RESERVE_BYTES: Final = 256 << 20
KEPT_SHARE: Final = 0.5
Make = Callable[[Candidate, Manifest], Engine]


def engine_of(settings: Settings, repository: Repository, candidate: Candidate, manifest: Manifest) -> Engine:
    """Returns the engine that a server with the candidate's settings would have, not yet started."""
    applied = candidate.applied(settings)
    options = EngineOptions(candidate.replicas, devices=for_replicas(settings.device_list, candidate.replicas, ()))

    def replica(number: int, packed_weights: PackedWeights = nowhere) -> EngineClient:
        config = engine_config(applied, repository, manifest, 0, options.of_replica(number))
        return EngineClient(config, env=engine_environment(), packed_weights=packed_weights)

    if candidate.replicas == 1:
        return replica(0)
    return Replicas(replica, candidate.replicas, candidate.max_num_seqs)


class Engines:
    """Lives in one event loop. `versions` are those that candidates name; they cannot be deleted before `close`."""

    def __init__(
        self, repository: Repository, versions: list[Manifest], make: Make, free: Callable[[], int] = available_memory
    ) -> None:
        self._versions = {each.reference: each for each in versions}
        with ExitStack() as leases:
            for each in versions:
                leases.enter_context(repository.lease(each))
            for each in versions:
                repository.fetch(each)
            self._leases = leases.pop_all()
        self._make = make
        self._free = free
        self._most = free() * KEPT_SHARE
        self._engines: dict[Candidate, Engine] = {}
        self._starting = 0
        """Bytes of engines that are being started, which are not yet missing from the free ones."""
        self.start_seconds = 0.0
        """Of the last start."""

    @property
    def kept(self) -> int:
        """Returns about how many engines can be kept at once."""
        largest = max(loaded_bytes(each.size) for each in self._versions.values())
        return max(1, int(self._most // largest))

    def started(self) -> set[Candidate]:
        return set(self._engines)

    async def engine(self, candidate: Candidate) -> Engine:
        """Returns the candidate's engine, started. Raises Broken."""
        engine = self._engines.pop(candidate, None)
        if engine is None:
            needed = self._needed(candidate)
            await self._make_room(needed)
            self._starting += needed
            began = time.monotonic()
            try:
                engine = await self._start(candidate)
            finally:
                self._starting -= needed
            self.start_seconds = time.monotonic() - began
        self._engines[candidate] = engine
        return engine

    async def start_all(self, candidates: list[Candidate], has_time: Callable[[], bool]) -> dict[Candidate, str]:
        """Starts the engines of candidates that can all be kept, in order and as many at once as there are cores, as
        long as `has_time` says so. Returns those that could not start, with the reason."""
        places, out = asyncio.Semaphore(usable_cores()), dict[Candidate, str]()

        async def start(candidate: Candidate) -> None:
            async with places:
                if not has_time():
                    return
                try:
                    await self.engine(candidate)
                except Broken as error:
                    out[candidate] = str(error)

        async with asyncio.TaskGroup() as starts:
            for each in candidates:
                starts.create_task(start(each))
        return out

    async def _start(self, candidate: Candidate) -> Engine:
        engine = self._make(candidate, self._versions[candidate.reference])
        try:
            await engine.start()
        except DosirakError as error:
            await engine.stop()
            raise Broken(f"its engine could not start: {error}") from None
        except BaseException:
            await engine.stop()
            raise
        return engine

    async def end(self, candidate: Candidate) -> None:
        if (engine := self._engines.pop(candidate, None)) is not None:
            await engine.stop()

    async def close(self) -> None:
        for candidate in tuple(self._engines):
            await self.end(candidate)
        self._leases.close()

    def _needed(self, candidate: Candidate) -> int:
        """Replicas share the weights."""
        weights = loaded_bytes(self._versions[candidate.reference].size)
        return weights + (candidate.replicas - 1) * ENGINE_BYTES

    async def _make_room(self, needed: int) -> None:
        while self._engines and self._free() - self._starting - needed < self._most:
            await self.end(next(iter(self._engines)))
        if (free := self._free() - self._starting) < needed + RESERVE_BYTES:
            raise Broken(f"it needs {needed / 1e9:.1f} GB of memory beside what runs, and {free / 1e9:.1f} GB are free")
