"""The OpenAPI document tells every route's answers, and every schema that it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_service import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


async def test_no_success_is_without_a_schema(shared: World) -> None:
    document = (await shared.client.get("/openapi.json")).json()
    found = dict(operations(document))
    assert len(found) >= 58
    for name, operation in found.items():
        successes = {status: told for status, told in operation["responses"].items() if status.startswith("2")}
        assert successes, name
        for status, told in successes.items():
            assert (status == "204") == ("content" not in told), f"{name} {status}"
            for media_type, content in told.get("content", {}).items():
                assert content.get("schema"), f"{name} {status} {media_type} says nothing of its answer"


async def test_streams_tell_their_events(shared: World) -> None:
    document = (await shared.client.get("/openapi.json")).json()
    told = {
        name: operation["responses"]["200"]["content"]["text/event-stream"]["schema"]["title"]
        for name, operation in operations(document)
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }
    assert told == {
        "post /generate": "GenerateEvent",
        "post /": "GenerateEvent",
        "post /generate_stream": "GenerateEvent",
        "post /v1/chat/completions": "ChatChunk",
        "post /v1/completions": "TextCompletion",
        "post /v1/responses": "ResponseEvent",
        "post /v1/messages": "AnthropicEvent",
        "post /v1/sessions/{session_id}/regenerate": "TokenEvent",
        "post /v2/models/{model}/generate_stream": "TextAnswer",
        "post /v2/models/{model}/versions/{version}/generate_stream": "TextAnswer",
        "get /v1/live": "LiveEvent",
    }


@pytest.mark.parametrize(
    ("stream", "body", "ends"),
    [("/generate_stream", {"inputs": "x"}, []), ("/v1/completions", {"prompt": "x", "stream": True}, ["[DONE]"])],
)
async def test_what_ends_a_stream_is_told(shared: World, stream: str, body: Json, ends: list[str]) -> None:
    """Schemathesis reads the data of an event by this schema."""
    document = (await shared.client.get("/openapi.json")).json()
    schema = document["paths"][stream]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    told = [each["const"] for each in schema["properties"]["data"].get("anyOf", []) if "const" in each]
    last = (await shared.client.post(stream, json=body)).text.rstrip().split("data: ")[-1]
    assert told == ends and (last == "[DONE]") == bool(ends)


async def test_every_reference_resolves(shared: World) -> None:
    text = (await shared.client.get("/openapi.json")).text
    schemas = (await shared.client.get("/openapi.json")).json()["components"]["schemas"]
    for name in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert name in schemas, name
    assert "#/$defs/" not in text
