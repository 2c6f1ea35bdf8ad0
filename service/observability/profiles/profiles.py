"""Profiles makes the profiles of one server, one at a time, and keeps them with their versions. It lives in the event
loop.

    begin ─▶ queued ─▶ running: the engine records steps ─▶ a process of its own joins them ─▶ succeeded
                        │ no step for a minute, the engine died or was stopped ──────────────▶ failed

A server that stops leaves its profile as it was. Nobody makes it any more, so it is shown as failed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from gzip import open as open_gzip
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.deployments import Deployments
from service.engine.client.engine import EngineFailed
from service.engine.protocol import messages
from service.errors import Conflict, DosirakError, NotFound, Unavailable
from service.observability.profiles.profile import Kind, Profile, ProfileFiles, now
from service.observability.profiles.trace import Difference, Measured, Operator, differences
from service.storage import cursors
from service.tasks import BackgroundTasks

log = structlog.get_logger(__name__)

PROFILE: Final = "profile"
PATIENCE_SECONDS: Final = 60.0
"""May pass without a step before a profile gives up."""
JOIN_SECONDS: Final = 600.0
WORKER: Final = "service.observability.profiles.worker"
INTERRUPTED: Final = "The server stopped while this profile was made; ask for it again"
_CURSOR: Final = "profiles"
_PIECE: Final = 1 << 16


class _Failed(Exception):
    """Its message is the sentence that the profile shows."""


class Profiles:
    def __init__(self, deployments: Deployments, tasks: BackgroundTasks) -> None:
        self._deployments = deployments
        self._files = ProfileFiles(deployments.repository.layout.data_dir)
        self._tasks = tasks
        self._making: Profile | None = None
        self._made: Profile | None = None
        """The one that was made last: who has read its file a moment before its end was stored sees its end."""

    async def begin(self, reference: str | None, steps: int, kind: Kind) -> Profile:
        """Begins a profile of a loaded version. Raises NotFound for one that is not loaded, Unavailable while its
        engine restarts, and Conflict while a profile is being made."""
        deployment = self._loaded(reference)
        if self._making is not None:
            raise Conflict(
                f"{self._making.id} of {self._making.model} is being made: wait until its state is succeeded or failed"
            )
        profile = self._making = Profile.new(deployment.manifest, steps, kind)
        try:
            await asyncio.to_thread(self._files.add, profile)
        except BaseException:
            self._making = None
            raise
        self._tasks.run(PROFILE, partial(self._make, deployment, profile))
        return profile

    async def page(self, cursor: str | None, limit: int) -> tuple[list[Profile], str | None]:
        """Returns a page of all profiles, newest first, and the next page's cursor. Raises InvalidRequest."""
        before = None if cursor is None else cursors.decode(_CURSOR, cursor, lambda at: isinstance(at, str))
        every = [self._shown(each) for each in await asyncio.to_thread(self._files.all)]
        found = [each for each in every if before is None or (each.created_at, each.id) < before]
        last = found[limit - 1] if len(found) > limit else None
        return found[:limit], cursors.encode(_CURSOR, last.created_at, last.id) if last else None

    async def get(self, id: str) -> Profile:
        """Returns a profile. Raises NotFound."""
        return self._shown(await asyncio.to_thread(self._files.get, id))

    async def trace(self, id: str) -> Iterator[bytes]:
        """Returns the parts of a profile's trace. Raises NotFound, and Conflict where it has not succeeded."""
        path = self._files.trace(await self._succeeded(id))
        if not await asyncio.to_thread(path.is_file):
            raise NotFound(f"The trace of {id} was deleted; make another profile", param="id")
        return _parts(path)

    async def compare(self, a: str, b: str) -> tuple[Profile, Profile, list[Difference]]:
        """Returns both profiles and the differences of their operators, the largest first. Raises as `trace`."""
        first, second = await self._succeeded(a), await self._succeeded(b)
        return first, second, differences(_measured(first), _measured(second))

    def _loaded(self, reference: str | None) -> Deployment:
        target = self._deployments.resolve(reference).reference
        deployment = next((each for each in self._deployments.all() if each.manifest.reference == target), None)
        if deployment is not None and deployment.state is DeploymentState.READY:
            if not deployment.is_serving:
                raise Unavailable(f"The engine of {target} is being started again; try again shortly", retry_after=2)
            return deployment
        if deployment is not None and deployment.state is DeploymentState.LOADING:
            raise NotFound(f"{target} is still loading; ask again when GET /v1/deployments says ready", param="model")
        raise NotFound(
            f'{target} is not loaded: load it with POST /v1/deployments {{"model": "{target}"}}, then ask again',
            param="model",
        )

    async def _succeeded(self, id: str) -> Profile:
        profile = await self.get(id)
        if profile.state != "succeeded":
            raise Conflict(f"{profile.id} is {profile.state}: only a profile that has succeeded holds operators")
        return profile

    def _shown(self, stored: Profile) -> Profile:
        for known in (self._making, self._made):
            if known is not None and stored.id == known.id:
                return known
        return stored if stored.ended else replace(stored, state="failed", error=INTERRUPTED)

    async def _make(self, deployment: Deployment, profile: Profile) -> None:
        """Makes a profile to its end, and stores it. A deleted version has no place for it any more."""
        try:
            ended = await self._end_of(deployment, profile)
            with suppress(FileNotFoundError):
                await asyncio.to_thread(self._files.put, ended)
            self._made = ended
            log.info(f"profile_{ended.state}", profile=ended.id, model=ended.model, reason=ended.error)
        finally:
            self._making = None

    async def _end_of(self, deployment: Deployment, profile: Profile) -> Profile:
        """Returns the profile as it ended. Every failure becomes the profile's own sentence."""
        self._making = profile = replace(profile, state="running")
        log.info("profile_started", profile=profile.id, model=profile.model, steps=profile.steps, kind=profile.kind)
        try:
            profile = replace(profile, **await self._recorded(deployment, profile))
            operators = await self._operators(self._files.directory(profile))
            return replace(profile, state="succeeded", operators=operators, ended_at=now())
        except (DosirakError, _Failed) as error:
            reason = str(error)
        except Exception:
            log.exception("profile_defect", profile=profile.id)
            reason = "a defect of the server stopped it, and the server's log says which"
        await asyncio.to_thread(self._files.drop_pieces)
        return replace(profile, state="failed", error=f"{reason[:1].upper()}{reason[1:]}", ended_at=now())

    async def _recorded(self, deployment: Deployment, profile: Profile) -> dict[str, Any]:
        """Returns what the engine says of the recorded steps. Raises _Failed, EngineFailed, Unavailable."""
        directory = str(self._files.directory(profile))
        order = messages.Profile(profile.id, directory, profile.steps, profile.kind, PATIENCE_SECONDS)
        try:
            recorded = await deployment.engine.profile(order)
        except EngineFailed as error:
            raise _Failed(f"{error}; ask for another profile when the version is ready") from None
        if recorded.error:
            raise _Failed(recorded.error)
        return {"steps_done": recorded.steps, "tokens": recorded.tokens, "seconds": recorded.seconds}

    async def _operators(self, directory: Path) -> list[Operator]:
        """Joins the pieces in a process of their own: they are megabytes, and answers must not wait for that. Raises
        _Failed."""
        command = (sys.executable, "-m", WORKER, str(directory))
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                out, reason = await process.communicate()
        except TimeoutError:
            raise _Failed(f"its trace was not read after {JOIN_SECONDS:g} s; ask for fewer steps") from None
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            said = reason.decode(errors="replace").strip().rpartition("\n")[2]
            raise _Failed(f"its trace cannot be read: {said or f'exit code {process.returncode}'}")
        return msgspec.json.decode(out, type=list[Operator])


def _measured(profile: Profile) -> Measured:
    return Measured(profile.operators or (), profile.steps_done)


def _parts(path: Path) -> Iterator[bytes]:
    with open_gzip(path) as trace:
        while part := trace.read(_PIECE):
            yield part
