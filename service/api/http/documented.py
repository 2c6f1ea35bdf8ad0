"""This module says for the OpenAPI document what a route reads and streams, and holds queries to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Set
from enum import Enum
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import QueryParams

from service.api.http.bodies import is_optional
from service.api.http.encoding import EVENT_STREAM, NDJSON
from service.api.http.fields import ignores_unknown, note_ignored
from service.errors import InvalidRequest, UnsupportedField

TEXT: Final = "text/plain"
REFERENCE: Final = "#/components/schemas/{model}"
NAMED: Final[dict[str, type[BaseModel]]] = {}
"""The wire models that the functions below were given, by name; the document has them."""
VERSIONS: Final = frozenset({"api-version", "beta"})
"""Query parameters by which clients of OpenAI and Anthropic name a version of the interface with every request; here
they say nothing."""
_BODILESS: Final = frozenset({"GET", "DELETE"})


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Returns a schema that refers to `model`, which the document then has."""
    NAMED[model.__name__] = model
    return {"$ref": REFERENCE.format(model=model.__name__)}


def streams(
    event: type[BaseModel], last: str = "", description: str = "One answer, or its events."
) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that answers with server-sent events. `event` is the data of each, but of
    one behind them whose data is the word `last`; the schema is that of one event, as OpenAPI 3.2 defines it for this
    media type."""
    shown = {"contentSchema": reference(event), "contentMediaType": "application/json"}
    data: dict[str, Any] = {"type": "string", "description": "JSON.", **shown}
    if last:
        data = {"anyOf": [data, {"const": last, "description": "The end of the stream."}]}
    kind = {"type": "string", "description": "`error` where the data is an error body."}
    properties = {"data": data, "event": kind}
    schema = {"title": event.__name__, "type": "object", "properties": properties, "required": ["data"]}
    return {200: {"description": description, "content": {EVENT_STREAM: {"schema": schema}}}}


def lines(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that answers with JSON lines."""
    schema = {"type": "string", "description": "One JSON object a line."}
    return {200: {"description": "JSON lines.", "content": {media_type: {"schema": schema}}}}


def line_stream(line: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that streams JSON lines; the schema is that of one line."""
    content = {NDJSON: {"schema": reference(line)}}
    return {200: {"description": "One answer, or its lines.", "content": content}}


class _Route(APIRoute):
    """A route whose document says what `json_body` reads: FastAPI itself sees a dependency there. It refuses a query
    parameter that comes twice, of which FastAPI would take the last; and under `/v1`, where the query is all that a
    request says, one that the route does not have."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        defaults = (parameter.default for parameter in inspect.signature(endpoint).parameters.values())
        models = [model for each in defaults if (model := getattr(getattr(each, "dependency", None), "model", None))]
        if models and options.get("openapi_extra") is None:
            options["openapi_extra"] = takes(models[0])
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, names = super().get_route_handler(), frozenset(_query_names(self.dependant))
        maps = frozenset(each["name"] for each in (self.openapi_extra or {}).get("parameters", ()))
        is_strict = self.path.startswith("/v1/") and not _BODILESS.isdisjoint(self.methods or ())

        async def handle_checked(request: Request) -> Response:
            require_once(request.query_params, names)
            if is_strict:
                require_known(request, names, maps)
            return await handle(request)

        return handle_checked if names or is_strict else handle


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _query_names(each)


def require_once(query: QueryParams, names: Set[str]) -> None:
    """Raises InvalidRequest for a query parameter among `names` that has two values."""
    if len(query) == len(query.multi_items()):
        return
    for name in names:
        if len(values := query.getlist(name)) > 1:
            raise InvalidRequest(f"`{name}` comes {len(values)} times in the query: send it once", param=name)


def require_known(request: Request, names: Set[str], maps: Set[str]) -> None:
    """Raises UnsupportedField for a query parameter that is none of `names`, and no `map[key]` of `maps`; or notes it
    in the response, as the setting says of unknown fields."""
    for each in request.query_params:
        name = each.partition("[")[0]
        if each in names or name in maps or each in VERSIONS:
            continue
        if ignores_unknown(request):
            note_ignored(request, [name[:80]])
            continue
        known = f", or send {', '.join(sorted(names | maps))}" if names or maps else ""
        raise UnsupportedField(f"`{name[:80]}` is no query parameter of this route: remove it{known}", param=name)


class Router(APIRouter):
    """A router of such routes."""

    def __init__(self, prefix: str = "", tags: list[str | Enum] | None = None) -> None:
        super().__init__(prefix=prefix, tags=tags, route_class=_Route)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the `openapi_extra` of a route that reads `model` itself, without `json_body`."""
    content = {"application/json": {"schema": reference(model)}}
    return {"requestBody": {"required": not is_optional(model), "content": content}}
