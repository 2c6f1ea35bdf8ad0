"""These routes are Triton's model repository extension of the KServe v2 protocol: an index of every version, load,
unload."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from fastapi import Request
from starlette.responses import Response

from models.manifest import Manifest
from models.repository.repository import Repository
from service.api.deps import Service, ServiceDep
from service.api.http.bodies import json_body
from service.api.http.connection import while_connected
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.kserve.answer_schemas import Loaded, RepositoryIndex, Unloaded
from service.api.kserve.routes import ReferenceDep
from service.api.kserve.schemas import IndexBody, LoadBody, UnloadBody
from service.deployments.deployment import DeploymentState
from service.generation.admission import NOT_LOADED

PREFIX: Final = "/v2/repository"
READY: Final = "READY"
STATES: Final = {
    DeploymentState.LOADING: "LOADING",
    DeploymentState.READY: READY,
    DeploymentState.RESTARTING: "UNAVAILABLE",
    DeploymentState.DRAINING: "UNLOADING",
    DeploymentState.FAILED: "UNAVAILABLE",
}
ABSENT: Final = ("UNAVAILABLE", "not loaded")
router = Router(prefix=PREFIX, tags=["kserve"])
INDEX: Final = json_body(IndexBody, any_type=True)
LOAD: Final = json_body(LoadBody, any_type=True)
UNLOAD: Final = json_body(UnloadBody, any_type=True)


@router.post("/index", response_model=RepositoryIndex)
async def index(service: ServiceDep, body: IndexBody = INDEX) -> Response:
    """Lists every version of every model with its state; with `ready` those that would answer at once."""
    deployed = service.deployments.all()
    states = {each.manifest.reference: (STATES[each.shown_state], each.cause) for each in deployed}
    found = await asyncio.to_thread(_index, service.deployments.repository, states)
    return json_response([each for each in found if each["state"] == READY or not body.ready])


def _index(repository: Repository, states: Mapping[str, tuple[str, str]]) -> list[dict[str, str]]:
    entries = []
    for name in repository.models():
        for manifest in repository.versions(name):
            state, reason = states.get(manifest.reference, ABSENT)
            entries.append({"name": name, "version": manifest.version, "state": state, "reason": reason})
    return entries


@router.post("/models/{model}/load", response_model=Loaded)
async def load(http: Request, service: ServiceDep, reference: ReferenceDep, body: LoadBody = LOAD) -> Response:
    """Loads the version that the reference means now, and answers when it is ready. It stays until it is unloaded by
    name, as with `POST /v1/deployments`."""
    manifest = await while_connected(http.receive, _loaded(service, http.state.owner, reference))
    return json_response({"name": manifest.name, "version": manifest.version, "load": True})


async def _loaded(service: Service, owner: str, reference: str) -> Manifest:
    async with service.answers.waiting.waiting(NOT_LOADED, owner):
        await service.deployments.settled(reference, DeploymentState.DRAINING)
        deployment = await service.deployments.begin_loading(reference)
        await deployment.settled(service.settings.load_timeout_seconds)
        return deployment.manifest


@router.post("/models/{model}/unload", response_model=Unloaded)
async def unload(http: Request, service: ServiceDep, reference: ReferenceDep, body: UnloadBody = UNLOAD) -> Response:
    """Drains the version that the reference means now, and ends its engine process. Answers once that has begun; while
    the version loads, it waits."""
    manifest = await while_connected(http.receive, _unloaded(service, http.state.owner, reference))
    return json_response({"name": manifest.name, "version": manifest.version, "unload": True})


async def _unloaded(service: Service, owner: str, reference: str) -> Manifest:
    async with service.answers.waiting.waiting(NOT_LOADED, owner):
        await service.deployments.settled(reference, DeploymentState.LOADING)
        return (await service.deployments.unload(reference)).manifest
