"""Every query parameter and every header of the document acts, and so does every field of the form of `/v1/files`. One
without a case in `tests/api/fields/parameters.py` fails here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from models.repository.repository import Repository
from service.api.edge.layer import POLLED
from service.api.openapi.operation_facts import EXAMPLES
from tests.api.conftest import KEY
from tests.api.fields.parameters import PARAMETERS, Parameter
from tests.api.fields.stage import TALK, Stage, addressed, staged
from tests.fake_service import publish, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
EVERYWHERE = {"X-Request-Id", "traceparent", "tracestate"}
ONCE = "Idempotency-Key"
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A server that has at least two of everything that is listed."""
    directory: Path = tmp_path_factory.mktemp("parameters")
    for name in ("demo", "demo", "other", "other", "other"):
        publish(Repository(directory), name)
    async with serving(directory, worker="tests.fake_job", admin_key=KEY) as world:
        world.client.headers["Authorization"] = f"Bearer {KEY}"
        made = await staged(world)
        for more in ({}, {"model": "other:1"}, {"metadata": {"order": "7"}}):
            await made.post("/v1/chat/completions", {"messages": TALK[:2], "store": True, **more})
        asked = await made.post("/v1/chat/completions", {"messages": TALK[:3], "store": True})
        given = [{"role": each["role"], "content": each["content"]} for each in TALK[:3]]
        made.made["completion"] = asked["id"]
        made.made["response"] = (await made.post("/v1/responses", {"input": given}))["id"]
        made.made["conversation"] = (await made.post("/v1/conversations", {"items": given}))["id"]
        session = (await made.post("/v1/sessions", {"title": "empty"}))["id"]
        for text, owner in (("rice", {}), ("salt", {"session_id": made.talk})):
            await made.post("/v1/knowledge", {"text": text, **owner})
        for model in ("demo:1", "other:2", "other:3"):
            body = {"session_id": session, "messages": TALK[:1], "model": model}
            await made.post("/v1/feedback", {"id": (await made.post("/generate", body))["id"], "rating": 1})
        for _ in range(2):
            await made.filled("<key>")
            file = await made.filled("<file>")
            batch = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            await made.post("/v1/batches", batch)
            profile = await made.post("/v1/profiles", {"steps": 1})
            await ended(made, f"/v1/profiles/{profile['id']}")
        await world.app.state.service.answers.usage.write()
        yield made


async def test_none_is_forgotten(stage: Stage) -> None:
    paths = (await stage.world.client.get("/openapi.json")).json()["paths"]
    told = {
        (f"{method} {path}", each["name"])
        for path, methods in paths.items()
        for method, operation in methods.items()
        for each in operation["parameters"]
        if each["in"] != "path" and each["name"] not in {*EVERYWHERE, ONCE}
    }
    assert {(case.operation, case.name) for case in PARAMETERS} == told


@pytest.mark.parametrize("case", PARAMETERS, ids=lambda case: f"{case.operation} {case.name}")
async def test_it_acts(stage: Stage, case: Parameter) -> None:
    without = await ask(stage, case, {})
    value = case.value(without.json()) if callable(case.value) else case.value
    assert not case.is_kept or not kept(stage, value)
    found = await ask(stage, case, value if isinstance(value, dict) else {case.name: value})
    assert found.status_code == case.status, found.text
    if case.is_kept:
        assert kept(stage, value)
    elif case.shows is None:
        assert without.status_code != case.status, "it is the same without"
    else:
        assert without.is_success, without.text
        assert case.shows(read(found), read(without)), (found.text[:500], without.text[:500])


async def ask(stage: Stage, case: Parameter, added: dict[str, str]) -> httpx.Response:
    method, path = case.operation.split(" ")
    if method != "get":
        path = path.replace("{conversation_id}", await stage.filled("<conversation>"))
    path = await addressed(stage, path)
    if "/rollout" in path:
        await stage.post(path.removesuffix("/promote"), {"candidate": "3", "weight": 10, "override": True}, "PUT")
    beside = {name: text for name, text in case.beside.items() if name != case.name}
    as_headers = case.is_header or "anthropic-version" in beside
    headers = {**(added if case.is_header else {}), **(beside if as_headers else {})}
    params = await stage.filled({**({} if case.is_header else added), **({} if as_headers else beside)})
    body = await stage.filled(case.body) if case.body is not None else None
    return await stage.world.client.request(method, path, params=params, headers=headers, json=body)


async def ended(stage: Stage, path: str) -> None:
    async with asyncio.timeout(20):
        while (await stage.world.client.get(path)).json()["state"] not in ("succeeded", "failed"):
            await asyncio.sleep(0.01)


def read(answer: httpx.Response) -> Any:
    return answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text


def kept(stage: Stage, text: str) -> bool:
    """Whether a file of the repository holds it."""
    return any(
        text in path.read_text()
        for path in stage.world.settings.data_dir.rglob("*.json*")
        if path.suffix in (".json", ".jsonl")
    )


async def operations(stage: Stage) -> list[tuple[str, str, dict[str, Any]]]:
    paths = (await stage.world.client.get("/openapi.json")).json()["paths"]
    return [
        (method, path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if path != "/v1/live"
    ]


async def test_the_id_and_the_trace_of_a_request_are_its_own(stage: Stage) -> None:
    """Nothing begins with a body that is no JSON, so every operation can be asked."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    told = {"X-Request-Id": "mine-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    for method, path, operation in await operations(stage):
        assert {each["name"] for each in operation["parameters"]} >= EVERYWHERE, path
        with capture_logs() as lines:
            json_type = {"Content-Type": "application/json"}
            answer = await stage.world.client.request(
                method, re.sub(r"\{[^}]*\}", "x", path), headers={**told, **json_type}, content=b"["
            )
        assert answer.headers["x-request-id"] == "mine-1", path
        if path in POLLED:  # it is in the log of a debugging server only
            continue
        [line] = [each for each in lines if each["event"] == "request"]
        assert (line["request_id"], line["trace_id"]) == ("mine-1", trace), path


async def test_a_key_makes_one_answer_of_two_requests(stage: Stage) -> None:
    for method, path, operation in await operations(stage):
        if ONCE not in {each["name"] for each in operation["parameters"]}:
            continue
        model = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
        address = path.replace("{model}", "demo").replace("{version}", "1")
        address = address.replace("{session_id}", await stage.filled("<session>"))
        ask = partial(stage.world.client.request, method, address, json=EXAMPLES[model], headers={ONCE: f"key:{path}"})
        first, asked = await ask(), len(stage.requests)
        assert first.is_success, first.text
        assert (await ask()).content == first.content, path
        assert len(stage.requests) == asked, path
        await ask(headers={ONCE: f"another:{path}"})
        assert len(stage.requests) > asked, path


FORM: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
    "file": ({}, lambda shown: (shown["bytes"], shown["filename"]) == (len(LINE), "두.jsonl")),
    "purpose": ({"purpose": "batch"}, lambda shown: shown["purpose"] == "batch"),
    "expires_after[anchor]": (
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"},
        lambda shown: shown["expires_at"] - shown["created_at"] == 3600,
    ),
    "expires_after[seconds]": (
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"},
        lambda shown: shown["expires_at"] - shown["created_at"] == 7200,
    ),
}
"""What is sent for each field of a form, and what is then told of the file."""
WRONG = {"purpose": "assistants", "expires_after[anchor]": "updated_at", "expires_after[seconds]": "soon"}


async def test_no_field_of_a_form_is_forgotten(stage: Stage) -> None:
    forms = {
        path: operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"].keys()
        for _, path, operation in await operations(stage)
        if "multipart/form-data" in operation.get("requestBody", {}).get("content", {})
    }
    assert forms == {"/v1/files": FORM.keys()}


@pytest.mark.parametrize("name", FORM)
async def test_a_field_of_the_form_acts_or_is_refused_by_name(stage: Stage, name: str) -> None:
    sent, shows = FORM[name]
    post = partial(stage.world.client.post, "/v1/files")
    file = {"file": ("두.jsonl", LINE)}
    answer = await post(data={"purpose": "batch", **sent}, files=file)
    assert answer.is_success and shows(answer.json()), answer.text
    if name in WRONG:
        wrong = await post(data={"purpose": "batch", **sent, name: WRONG[name]}, files=file)
    else:
        wrong = await post(data={"purpose": "batch"}, files={"other": file["file"]})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == name.replace("[", ".").replace("]", ""), wrong.text
