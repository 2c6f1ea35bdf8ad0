"""This module says for the OpenAPI document what a route reads and streams."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service.api.http.bodies import is_optional
from service.api.http.encoding import EVENT_STREAM, NDJSON

TEXT: Final = "text/plain"
REFERENCE: Final = "#/components/schemas/{model}"
NAMED: Final[dict[str, type[BaseModel]]] = {}
"""The wire models that the functions below were given, by name; the document has them."""


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
    """A route whose document says what `json_body` reads: FastAPI itself sees a dependency there."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        defaults = (parameter.default for parameter in inspect.signature(endpoint).parameters.values())
        models = [model for each in defaults if (model := getattr(getattr(each, "dependency", None), "model", None))]
        if models and options.get("openapi_extra") is None:
            options["openapi_extra"] = takes(models[0])
        super().__init__(path, endpoint, **options)


class Router(APIRouter):
    """A router of such routes."""

    def __init__(self, prefix: str = "", tags: list[str | Enum] | None = None) -> None:
        super().__init__(prefix=prefix, tags=tags, route_class=_Route)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the `openapi_extra` of a route that reads `model` itself, without `json_body`."""
    content = {"application/json": {"schema": reference(model)}}
    return {"requestBody": {"required": not is_optional(model), "content": content}}
