"""These routes serve aliases over HTTP: promote behind the gate, compare-and-set, roll back, and the history of an
alias.

The `ETag` of an alias, and of its rollout, is the version that the alias points to, `""` where there is none.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from models.errors import NotFound as NothingThere
from models.repository import rollouts
from models.repository.disk.journal import Entry
from models.repository.rollouts import Rollout, RolloutLimits
from service.api.deps import ActorDep, Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.http.headers import IfMatch, tag_of
from service.api.repository.answer_schemas import Aliases, AliasShown, Changes, Rollouts, RolloutShown, RunningRollout
from service.api.repository.routes import PREFIX
from service.api.repository.schemas import AliasBody, CandidateBody, ReasonBody, RolloutBody
from service.api.shared.moments import moment_of
from service.errors import NotFound

router = Router(prefix=PREFIX + "/{name}/aliases", tags=["repository"])
ALIAS: Final = json_body(AliasBody)
REASON: Final = json_body(ReasonBody)


@router.get("", response_model=Aliases)
async def list_aliases(service: ServiceDep, name: str) -> Response:
    """Lists every alias of a model and the version that it points to."""
    repository = service.deployments.repository
    await asyncio.to_thread(repository.require_known, name)
    return json_response({"data": await asyncio.to_thread(repository.aliases, name)})


@router.get("/{alias}", response_model=AliasShown)
async def get_alias(service: ServiceDep, name: str, alias: str) -> Response:
    """Returns the version that an alias points to, and the change that set it."""
    history = await asyncio.to_thread(service.deployments.repository.history, name, alias)
    if not history or history[-1].version is None:
        raise NotFound(f"{name[:80]} has no alias {alias[:80]!r}; PUT makes one", param="alias")
    return _answer(name, alias, history[-1])


@router.put("/{alias}", response_model=AliasShown)
async def promote(
    service: ServiceDep, actor: ActorDep, name: str, alias: str, body: AliasBody = ALIAS, if_match: IfMatch = None
) -> Response:
    """Points an alias to a version. 409 with the broken limits when its report does not pass the gate, unless
    `override` is true and `reason` says why; 412 when `If-Match` is not the version that the alias points to."""
    entry = await asyncio.to_thread(
        service.deployments.repository.promote,
        name,
        alias,
        body.version,
        body.reason,
        actor,
        expected=tag_of(if_match),
        limits=service.settings.gate(alias),
        override=body.override,
    )
    return _changed(service, name, alias, entry)


@router.delete("/{alias}", response_model=AliasShown)
async def remove(
    service: ServiceDep, actor: ActorDep, name: str, alias: str, reason: Text = "", if_match: IfMatch = None
) -> Response:
    """Removes an alias."""
    entry = await asyncio.to_thread(
        service.deployments.repository.remove_alias, name, alias, reason, actor, expected=tag_of(if_match)
    )
    return _changed(service, name, alias, entry)


@router.post("/{alias}/rollback", response_model=AliasShown)
async def rollback(
    service: ServiceDep, actor: ActorDep, name: str, alias: str, body: ReasonBody = REASON, if_match: IfMatch = None
) -> Response:
    """Undoes the last promotion or removal; a second rollback undoes the one before. The gate refuses none, and
    `overridden` of the change has the limits that the version breaks."""
    entry = await asyncio.to_thread(
        service.deployments.repository.rollback,
        name,
        alias,
        body.reason,
        actor,
        expected=tag_of(if_match),
        limits=service.settings.gate(alias),
    )
    return _changed(service, name, alias, entry)


@router.get("/{alias}/history", response_model=Changes)
async def history(service: ServiceDep, name: str, alias: str, at: Text | None = None) -> Response:
    """Lists every change of an alias, oldest first; with `at`, only the change that was in force then, if any."""
    moment = None if at is None else moment_of(at, "at")
    repository = service.deployments.repository
    await asyncio.to_thread(repository.require_known, name)
    entries = await asyncio.to_thread(repository.history, name, alias, moment)
    return json_response({"data": [asdict(entry) for entry in entries]})


def _changed(service: Service, name: str, alias: str, entry: Entry) -> Response:
    service.deployments.follow_all()
    return _answer(name, alias, entry)


def _answer(name: str, alias: str, entry: Entry) -> Response:
    body: dict[str, Any] = {"model": name, "alias": alias, "version": entry.version, "change": asdict(entry)}
    return json_response(body, headers=_etag(entry.version))


def _etag(version: str | None) -> dict[str, str]:
    return {"ETag": f'"{version or ""}"'}


ROLLOUT: Final = json_body(RolloutBody)
CANDIDATE: Final = json_body(CandidateBody)


@router.get("/{alias}/rollout", response_model=Rollouts)
async def get_rollout(service: ServiceDep, name: str, alias: str) -> Response:
    """Returns the running rollout with what was observed of both versions, and the earlier rollouts."""
    repository = service.deployments.repository
    found = await asyncio.to_thread(rollouts.history, repository, name, alias)
    if not found:
        raise NothingThere(f"There was no rollout of {name}@{alias} yet")
    running = await asyncio.to_thread(rollouts.running, repository, name, alias)
    version = running.base if running else (await asyncio.to_thread(repository.aliases, name)).get(alias)
    shown = {"rollout": _rollout(service, running) if running else None, "history": found}
    return json_response(shown, headers=_etag(version))


@router.put("/{alias}/rollout", response_model=RunningRollout)
async def put_rollout(
    service: ServiceDep, name: str, alias: str, body: RolloutBody = ROLLOUT, if_match: IfMatch = None
) -> Response:
    """Begins to send `weight` percent of the conversations to `candidate`, or changes the running rollout's weight, and
    what else the body sets; 412 when `If-Match` is not the version that the alias points to."""
    new = Rollout(name, alias, "", body.candidate, body.weight, True, False, RolloutLimits(), "")
    rollout = await asyncio.to_thread(
        rollouts.put,
        service.deployments.repository,
        _as_asked(body, new),
        None if body.override else service.settings.gate(alias),
        expected=tag_of(if_match),
        change=partial(_as_asked, body),
    )
    service.deployments.follow_all()
    return json_response(_rollout(service, rollout), headers=_etag(rollout.base))


@router.delete("/{alias}/rollout", response_model=RolloutShown)
async def abort_rollout(
    service: ServiceDep, name: str, alias: str, reason: Text = "", if_match: IfMatch = None
) -> Response:
    """Sends all conversations back to the version that the alias points to."""
    ended = await asyncio.to_thread(
        rollouts.end,
        service.deployments.repository,
        name,
        alias,
        "aborted",
        reason,
        expected=tag_of(if_match),
    )
    service.deployments.follow_all()
    return json_response(ended, headers=_etag(ended.base))


@router.post("/{alias}/rollout/promote", response_model=RolloutShown)
async def promote_rollout(
    service: ServiceDep,
    actor: ActorDep,
    name: str,
    alias: str,
    body: CandidateBody = CANDIDATE,
    if_match: IfMatch = None,
) -> Response:
    """Points the alias to the candidate, which ends the rollout. 409 with the broken limits when the candidate's report
    does not pass the gate, unless `override` is true and `reason` says why."""
    ended = await asyncio.to_thread(
        rollouts.promote,
        service.deployments.repository,
        name,
        alias,
        body.reason,
        actor,
        limits=service.settings.gate(alias),
        override=body.override,
        expected=tag_of(if_match),
    )
    service.deployments.follow_all()
    return json_response(ended, headers=_etag(ended.candidate))


def _as_asked(body: RolloutBody, rollout: Rollout) -> Rollout:
    """Returns the rollout with what the body sets; the rest, each limit of its own too, stays as it is."""
    sent = body.model_dump(exclude_unset=True, exclude={"override", "guards"})
    guards = body.guards.model_dump(exclude_none=True) if body.guards else {}
    limits = msgspec.structs.replace(rollout.limits, **guards)
    return msgspec.structs.replace(rollout, limits=limits, **sent)


def _rollout(service: Service, rollout: Rollout) -> dict[str, Any]:
    return {**msgspec.to_builtins(rollout), "observed": service.deployments.rollouts.describe(rollout)}
