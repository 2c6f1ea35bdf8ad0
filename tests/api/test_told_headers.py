"""The OpenAPI document tells where a key is asked for, and every header of a request that the code reads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.datastructures import Headers

from models.repository.repository import Repository
from tests.api.conftest import KEY, Serve
from tests.api.fields.stage import Stage, addressed, staged
from tests.fake_service import World, publish, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
OF_HTTP = {"accept", "authorization", "content-type"}
"""OpenAPI has other places for these, and ignores parameters of their names."""
OF_BODIES = {"content-encoding", "content-length", "expect", "transfer-encoding"}
OF_BROWSERS = {"cookie", "origin", "sec-fetch-site"}
OF_CALLERS = {"host", "x-api-key", "forwarded"}
"""What shows who asks; the security schemes tell of the key."""
LOOKED_FOR = {"anthropic-version", "idempotency-key"}
"""Looked for everywhere, and say something on a few routes: see `test_every_parameter` and `test_openapi`."""
UNTOLD = {*OF_HTTP, *OF_BODIES, *OF_BROWSERS, *OF_CALLERS, *LOOKED_FOR}
IN_SESSION = {"session_id": "<session>"}
TURN_OF = {
    "GenerateBody": IN_SESSION,
    "ChatBody": IN_SESSION,
    "MessagesBody": IN_SESSION,
    "ResponseBody": {"conversation": "<conversation>"},
}
"""What makes a body a turn of a session, which headers act on that are not read else."""
TURNS = {"/", "/generate", "/generate_stream", "/v1/chat/completions", "/v1/messages", "/v1/responses"}
SENT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
"""Beside it others are read."""


def operations(document: Json) -> list[tuple[str, str, Json]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def document_of(world: World, **headers: str) -> Json:
    return dict((await world.client.get("/openapi.json", headers=headers)).json())


async def test_a_key_is_asked_for_where_the_document_says(guarded: World) -> None:
    found = operations(await document_of(guarded, **AUTHORIZED))
    assert {path for _, path, operation in found if operation["security"] == []} == {"/livez", "/readyz"}
    for method, path, operation in found:
        answer = await guarded.client.request(method, re.sub(r"\{[^}]*\}", "x", path))
        assert {} not in operation["security"], path
        assert (answer.status_code == 401) == bool(operation["security"]), f"{method} {path}: {answer.text}"
        assert ("401" in operation["responses"]) == bool(operation["security"]), path
        assert ("403" in operation["responses"]) == bool(operation["security"]), path


@pytest.mark.parametrize("scheme", ["key", "x-api-key", "cookie"])
async def test_each_way_to_show_the_key_opens_what_it_is_told_for(guarded: World, scheme: str) -> None:
    """Nothing begins with a body that is no JSON."""
    cookie = (await guarded.client.post("/ui/sign-in", data={"key": KEY})).headers["set-cookie"].partition(";")[0]
    guarded.client.cookies.clear()
    shown = {
        "key": AUTHORIZED,
        "x-api-key": {"X-Api-Key": KEY},
        "cookie": {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"},
    }[scheme]
    for method, path, operation in operations(await document_of(guarded, **AUTHORIZED)):
        if path == "/v1/live" or not operation["security"]:  # a stream without an end
            continue
        assert any(scheme in each for each in operation["security"]), path
        headers = {**shown, "Content-Type": "application/json"}
        answer = await guarded.client.request(method, re.sub(r"\{[^}]*\}", "x", path), headers=headers, content=b"[")
        assert answer.status_code not in (401, 403), f"{method} {path}: {answer.text}"


async def test_metrics_that_are_open_need_no_key_in_the_document(serve: Serve) -> None:
    async with serve(admin_key=KEY, open_metrics=True) as world:
        metrics = (await document_of(world, **AUTHORIZED))["paths"]["/metrics"]["get"]
        assert metrics["security"] == []
        assert (await world.client.get("/metrics")).status_code == 200


async def test_a_server_without_a_key_needs_none(shared: World) -> None:
    for _, path, operation in operations(await document_of(shared)):
        assert operation["security"] == [] or operation["security"][0] == {}, path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of headers that were read since it was cleared, in lower case."""
    names: set[str] = set()
    plain = {name: getattr(Headers, name) for name in ("__getitem__", "__contains__", "getlist")}

    def noted(name: str) -> Any:
        def look(headers: Headers, key: str) -> Any:
            names.add(key.lower())
            return plain[name](headers, key)

        return look

    for name in plain:
        monkeypatch.setattr(Headers, name, noted(name))
    yield names


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A server with a key and one of everything, whose client shows the key."""
    directory: Path = tmp_path_factory.mktemp("headers")
    for name in ("demo", "other", "other", "other"):
        publish(Repository(directory), name)
    async with serving(directory, worker="tests.fake_job", admin_key=KEY) as world:
        world.client.headers.update(AUTHORIZED)
        yield await staged(world)


async def test_every_header_that_is_read_is_told(stage: Stage, read: set[str]) -> None:
    document = await document_of(stage.world)
    for method, path, operation in operations(document):
        if path == "/v1/live":  # a stream without an end
            continue
        address, body = await addressed(stage, path), await stage.filled(body_of(operation))
        read.clear()
        async with asyncio.timeout(20):
            answer = await stage.world.client.request(method, address, json=body, headers=SENT)
        told = {each["name"].lower() for each in operation["parameters"] if each["in"] == "header"}
        assert read - UNTOLD <= told, f"{method} {path} reads a header that the document does not tell"
        if method == "POST" and path in TURNS:
            assert "if-match" in read, answer.text


def body_of(operation: Json) -> Any:
    """The operation's example, as a turn of a session or of a conversation where it can be one."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if "$ref" not in content.get("schema", {}):
        return None
    return {**content["example"], **TURN_OF.get(content["schema"]["$ref"].rsplit("/", 1)[-1], {})}
