"""This module says for the OpenAPI document what a route reads and streams. Routes name a wire model here; `openapi`
puts the model in (EVENTS, MODELS)."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from service.api.http.bodies import is_optional
from service.api.http.encoding import EVENT_STREAM, NDJSON

TEXT: Final = "text/plain"
REFERENCE: Final = "#/components/schemas/{model}"


def streams(
    event: type[BaseModel], last: str = "", description: str = "One answer, or its events."
) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that answers with server-sent events. `event`, one of EVENTS, is the data of
    each, but of one behind them whose data is the word `last`; the schema is that of one event, as OpenAPI 3.2 defines
    it for this media type."""
    shown = {"contentSchema": {"$ref": REFERENCE.format(model=event.__name__)}, "contentMediaType": "application/json"}
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
    """Returns the `responses` of a route that streams JSON lines; the schema is that of one line, one of EVENTS."""
    schema = {"$ref": REFERENCE.format(model=line.__name__)}
    return {200: {"description": "One answer, or its lines.", "content": {NDJSON: {"schema": schema}}}}


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the `openapi_extra` of a route that reads `model` itself."""
    reference = {"$ref": REFERENCE.format(model=model.__name__)}
    required = not is_optional(model)
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": reference}}}}
