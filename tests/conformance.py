"""Every successful answer of a test's server is held against the model that its route declares.

The client of `tests.fake_service` looks at each response so: what the OpenAPI document says cannot drift from what is
sent, and no response pays for it at run time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import Match

from service.api.http.documented import NAMED
from service.api.http.encoding import EVENT_STREAM, NDJSON
from service.api.router import PARTS

JSON = "application/json"
NO_EVENTS = ("[DONE]", '{"error":')


async def conforms(response: httpx.Response) -> None:
    """A hook of httpx. Raises pydantic's ValidationError for an answer that is not what its route declares."""
    route = _route(response.request)
    if route is None or not response.is_success or response.status_code == 204:
        return
    text = (await response.aread()).decode()
    kind = response.headers["content-type"].partition(";")[0]
    declared = route.responses.get(response.status_code, {}).get("content", {})
    if kind == EVENT_STREAM:
        name = declared[EVENT_STREAM]["schema"]["title"]
        for data in _events(text):
            _adapter(NAMED[name]).validate_json(data)
    elif kind == NDJSON and "$ref" in (schema := declared[NDJSON]["schema"]):
        for line in _lines(text):
            _adapter(NAMED[schema["$ref"].rsplit("/", 1)[1]]).validate_json(line)
    elif kind == JSON:
        assert route.response_model is not None, f"{route.path} does not declare its answer"
        _adapter(route.response_model).validate_json(text)
    else:
        assert kind in (*declared, "text/plain"), f"{route.path} answered {kind}"


def _route(request: httpx.Request) -> APIRoute | None:
    """The documented route that answered."""
    scope = {"type": "http", "method": request.method, "path": request.url.path, "path_params": {}, "root_path": ""}
    return next((route for route in documented() if route.matches(scope)[0] is Match.FULL), None)


@cache
def documented() -> list[APIRoute]:
    """The routes of `/openapi.json`."""
    routes = [route for part in PARTS for route in part.router.routes]
    found = [route for route in routes if isinstance(route, APIRoute) and route.include_in_schema]
    assert found, "no route is found, so no answer would be looked at"
    return found


def _events(text: str) -> list[str]:
    """The data of each event but the end and errors."""
    events = [event.rsplit("data: ", 1)[-1] for event in text.split("\n\n") if "data: " in event]
    return [data for data in events if not data.startswith(NO_EVENTS)]


def _lines(text: str) -> list[str]:
    """Each line but an error."""
    return [line for line in text.splitlines() if not line.lstrip().startswith('{"error":')]


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)
