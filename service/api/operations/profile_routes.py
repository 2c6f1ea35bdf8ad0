"""These routes serve profiles of running engines: make, list, fetch and compare."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from service.api.deps import Limit, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import takes
from service.api.http.encoding import JSON, json_response
from service.api.operations.profile_answer_schemas import ComparedProfiles, ProfilePage, ProfileShown, Trace
from service.api.operations.schemas import ProfileBody
from service.errors import InvalidRequest
from service.observability.profiles.profile import Profile

PREFIX: Final = "/v1/profiles"
router = APIRouter(prefix=PREFIX, tags=["operations"])
BODY: Final = json_body(ProfileBody)


@router.post("", response_model=ProfileShown, status_code=202, openapi_extra=takes(ProfileBody))
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
    told = {"Content-Disposition": f'attachment; filename="{id}.pt.trace.json"'}
    return StreamingResponse(parts, headers=told, media_type=JSON)


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
