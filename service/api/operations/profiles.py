"""Profiles of running engines: their wire models, and the routes that make, list, fetch and compare them."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from service.api.deps import Limit, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import JSON, json_response
from service.api.operations.schemas import ProfileBody
from service.api.shared.answer_schemas import Object, Page, Shown, Time
from service.errors import InvalidRequest
from service.observability.profiles.profile import Kind, Profile, State


class OperatorShown(Shown):
    """`self_seconds` and `self_bytes`, over all steps, leave out the operators that it calls. `self_bytes` is what it
    allocated, null but for the kind `memory`."""

    name: str
    calls: int
    self_seconds: float
    self_bytes: int | None


class ProfileShown(Shown):
    """`steps` were asked for, `steps_done` recorded; `tokens` and `seconds` are of the recorded steps. `operators`, the
    most seconds first, is null until the state is succeeded; `error` says why one has failed."""

    id: str
    model: str
    digest: str
    kind: Kind
    state: State
    steps: int
    steps_done: int
    tokens: int
    seconds: float
    created_at: Time
    ended_at: Time | None
    error: str | None
    operators: list[OperatorShown] | None


class ProfilePage(Page[ProfileShown]):
    """Profiles, newest first."""


class Trace(Shown):
    """A trace in Chrome's format. Times of an event are microseconds behind `baseTimeNanoseconds`."""

    schemaVersion: int
    displayTimeUnit: str
    baseTimeNanoseconds: int
    deviceProperties: list[Object]
    traceEvents: list[Object]


class ComparedProfile(Shown):
    id: str
    model: str
    digest: str
    kind: str
    steps_done: int
    tokens: int
    seconds_per_step: float


class OperatorDifference(Shown):
    """Own seconds and calls a step; 0 where a profile does not have the operator. The difference is b less a."""

    name: str
    a_seconds_per_step: float
    b_seconds_per_step: float
    difference_seconds_per_step: float
    a_calls_per_step: float
    b_calls_per_step: float


class ComparedProfiles(Shown):
    """`operators`: the largest difference first, slower or faster."""

    a: ComparedProfile
    b: ComparedProfile
    operators: list[OperatorDifference] = Field(description="Of both profiles.")


PREFIX: Final = "/v1/profiles"
router = Router(prefix=PREFIX, tags=["operations"])
BODY: Final = json_body(ProfileBody)


@router.post("", response_model=ProfileShown, status_code=202)
async def begin_profile(service: ServiceDep, body: ProfileBody = BODY) -> Response:
    """Begins to record the next steps of a loaded version; poll its `state`. 409 while another profile is being made,
    404 for a version that is not loaded."""
    profile = await service.profiles.begin(body.model, body.steps, body.kind)
    return json_response(profile, 202, {"Location": f"{PREFIX}/{profile.id}"})


@router.get("", response_model=ProfilePage)
async def list_profiles(service: ServiceDep, cursor: Text | None = None, limit: Limit = 20) -> Response:
    """Lists the profiles of all versions, newest first. A version keeps its newest 20."""
    data, next_cursor = await service.profiles.page(cursor, limit)
    return json_response({"data": data, "next_cursor": next_cursor})


@router.get("/compare", response_model=ComparedProfiles)
async def compare_profiles(service: ServiceDep, a: Text = "", b: Text = "") -> Response:
    """Compares two profiles, also of different versions: seconds a step of every operator, the largest difference
    first."""
    for name, id in (("a", a), ("b", b)):
        if not id:
            raise InvalidRequest(f"`{name}` is missing: name two profiles, as in ?a=profile-…&b=profile-…", param=name)
    first, second, operators = await service.profiles.compare(a, b)
    return json_response({"a": _compared(first), "b": _compared(second), "operators": operators})


@router.get("/{id}", response_model=ProfileShown)
async def get_profile(service: ServiceDep, id: str) -> Response:
    """Returns a profile: how far it is, and its operators when it has succeeded."""
    return json_response(await service.profiles.get(id))


@router.get("/{id}/trace", response_model=Trace)
async def get_trace(service: ServiceDep, id: str) -> Response:
    """Returns the trace in Chrome's format, which Perfetto and TensorBoard read; 409 until the profile has
    succeeded."""
    parts = await service.profiles.trace(id)
    headers = {"Content-Disposition": f'attachment; filename="{id}.pt.trace.json"'}
    return StreamingResponse(parts, headers=headers, media_type=JSON)


def _compared(profile: Profile) -> dict[str, Any]:
    return {
        "id": profile.id,
        "model": profile.model,
        "digest": profile.digest,
        "kind": profile.kind,
        "steps_done": profile.steps_done,
        "tokens": profile.tokens,
        "seconds_per_step": profile.seconds / max(1, profile.steps_done),
    }
