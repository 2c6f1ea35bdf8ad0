"""These routes serve rollouts over HTTP: a candidate version under an alias, its observations, its promotion or its
abort."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from models.errors import NotFound
from models.repository import rollouts
from models.repository.rollouts import Rollout, RolloutLimits
from service.api.deps import ActorDep, Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import takes
from service.api.http.encoding import json_response
from service.api.repository.alias_routes import REASON
from service.api.repository.answer_schemas import Rollouts, RolloutShown, RunningRollout
from service.api.repository.routes import PREFIX
from service.api.repository.schemas import ReasonBody, RolloutBody

router = APIRouter(prefix=PREFIX + "/{name}/aliases/{alias}/rollout", tags=["repository"])
ROLLOUT: Final = json_body(RolloutBody)


@router.get("", response_model=Rollouts)
async def get_rollout(service: ServiceDep, name: str, alias: str) -> Response:
    """Returns the running rollout with what was observed of both versions, and the earlier rollouts."""
    found = await asyncio.to_thread(rollouts.history, service.deployments.repository, name, alias)
    if not found:
        raise NotFound(f"There was no rollout of {name}@{alias} yet")
    running = await asyncio.to_thread(rollouts.running, service.deployments.repository, name, alias)
    return json_response({"rollout": _shown(service, running) if running else None, "history": found})


@router.put("", response_model=RunningRollout, openapi_extra=takes(RolloutBody))
async def put_rollout(service: ServiceDep, name: str, alias: str, body: RolloutBody = ROLLOUT) -> Response:
    """Begins to send `weight` percent of the conversations to `candidate`, or changes the running rollout's weight."""
    limits = RolloutLimits(**(body.guards.model_dump(exclude_none=True) if body.guards else {}))
    wanted = Rollout(name, alias, "", body.candidate, body.weight, body.sticky, body.shadow, limits, "")
    gate = None if body.override else service.settings.gate(alias)
    rollout = await asyncio.to_thread(rollouts.put, service.deployments.repository, wanted, gate)
    service.deployments.follow_all()
    return json_response(_shown(service, rollout))


@router.delete("", response_model=RolloutShown)
async def abort_rollout(service: ServiceDep, name: str, alias: str, reason: Text = "") -> Response:
    """Sends all conversations back to the version that the alias points to."""
    ended = await asyncio.to_thread(rollouts.end, service.deployments.repository, name, alias, "aborted", reason)
    service.deployments.follow_all()
    return json_response(ended)


@router.post("/promote", response_model=RolloutShown, openapi_extra=takes(ReasonBody))
async def promote_rollout(
    service: ServiceDep, actor: ActorDep, name: str, alias: str, body: ReasonBody = REASON
) -> Response:
    """Points the alias to the candidate, which ends the rollout."""
    reason = body.reason or "the rollout went well"
    ended = await asyncio.to_thread(rollouts.promote, service.deployments.repository, name, alias, reason, actor)
    service.deployments.follow_all()
    return json_response(ended)


def _shown(service: Service, rollout: Rollout) -> dict[str, Any]:
    return {**msgspec.to_builtins(rollout), "observed": service.deployments.rollouts.describe(rollout)}
