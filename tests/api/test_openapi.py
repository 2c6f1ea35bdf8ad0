"""The OpenAPI document tells every route's answers, and every schema that it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from service.api.http.scopes import EVERY
from service.api.openapi.document import ERROR_SCHEMAS
from service.api.openapi.operation_facts import REPEATED
from tests.api.conftest import KEY
from tests.conformance import documented
from tests.fake_service import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]
JSON = "application/json"


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


async def test_every_error_has_an_example_of_its_schema(shared: World) -> None:
    document = (await shared.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    check = {name: jsonschema_rs.validator_for(schemas[name]) for name, _ in ERROR_SCHEMAS.values()}
    for _, operation in operations(document):
        for status, told in operation["responses"].items():
            if status >= "400":
                if status == "416":  # of a library, without a body
                    continue
                content = told["content"][JSON]
                check[content["schema"]["$ref"].rsplit("/", 1)[1]].validate(content["example"])


async def test_every_operation_tells_its_facts(shared: World) -> None:
    """A new operation needs a tag that is described, a scope, examples, and the headers that act on it."""
    document = (await shared.client.get("/openapi.json")).json()
    tags = {each["name"] for each in document["tags"] if each["description"]}
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for name, operation in operations(document):
        assert operation["tags"] and tags.issuperset(operation["tags"]), name
        assert operation.get("description"), name
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert "$ref" not in content.get("schema", {}) or "example" in content, name
        headers = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
        assert "X-Request-Id" in headers, name
        scopes = {scope for each in operation["security"] for listed in each.values() for scope in listed}
        assert bool(operation["security"]) != name.endswith(("/livez", "/readyz")), name
        assert scopes <= EVERY, name


def test_an_idempotency_key_is_told_where_it_acts() -> None:
    told = {route.path for route in documented() if "POST" in (route.methods or ()) and REPEATED.fullmatch(route.path)}
    generating = {route.path for route in documented() if re.search(r"respond(_whole)?\(", getsource(route.endpoint))}
    assert generating <= told


def test_typescripts_types_are_up_to_date() -> None:
    script = Path(__file__).parents[2] / "docs/types/generate.py"
    found = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr


async def test_docs_page_has_every_operation(guarded: World) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    document = (await guarded.client.get("/openapi.json", headers=key)).json()
    page = await guarded.client.get("/docs", headers=key)
    for name, _ in operations(document):
        method, path = name.split(" ")
        assert f'data-method="{method}" data-path="{path}"' in page.text
    assert (await guarded.client.get("/docs/docs.js")).status_code == 401
    script = await guarded.client.get("/docs/docs.js", headers=key)
    assert script.headers["content-type"].startswith("text/javascript")
