"""A stream's headers and its comments come before its first token, in every dialect that streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from huggingface_hub import AsyncInferenceClient

from service.context.prompt import Prompt
from service.deployments.deployment import Deployment
from service.engine.client.engine import EngineFailed
from service.generation.bounds import build
from service.generation.request import GenerationRequest
from tests.api.conftest import Serve
from tests.api.reading import error, openai_error
from tests.fake_service import REPLY, ScriptedEngine, World, over_http
from tests.waiting import until

CHAT = [{"role": "user", "content": "hi"}]
COMMENT = ": keep-alive"
STREAMS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"inputs": "x", "stream": True}),
    ("/generate_stream", {"inputs": "x"}),
    ("/generate_stream", {"text_input": "x"}),
    ("/v1/chat/completions", {"messages": CHAT, "stream": True, "temperature": 0}),
    ("/v1/completions", {"prompt": ["a", "b"], "stream": True, "temperature": 0}),
]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.answering.streaming.HEADERS_SECONDS", 0.01)
    monkeypatch.setattr("service.api.answering.streaming.COMMENT_SECONDS", 0.01)


async def commented(lines: AsyncIterator[str], count: int = 3) -> None:
    """Reads that many comments, and nothing else."""
    while count:
        line = await anext(lines)
        assert line in (COMMENT, "")
        count -= line == COMMENT


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_comments_come_until_the_first_token(serve: Serve, path: str, body: dict[str, Any]) -> None:
    hold = asyncio.Event()
    async with serve(engine={"hold": hold}) as world, over_http(world) as url, asyncio.timeout(30):
        async with httpx.AsyncClient() as client, client.stream("POST", url + path, json=body) as response:
            assert response.status_code == 200
            assert response.headers["x-model-version"] == "demo:1"
            assert response.headers["x-context-truncated"] == "false"
            lines = response.aiter_lines()
            await commented(lines)
            hold.set()
            rest = [line async for line in lines if line.startswith("data: ")]
        whole = await client_without_wait(world, path, body)
        assert len(rest) == len(whole), "one event a token, as without the wait"


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_comments_fill_a_pause_within_the_answer(serve: Serve, path: str, body: dict[str, Any]) -> None:
    async with serve(engine={"step_seconds": 0.04}) as world, over_http(world) as url, httpx.AsyncClient() as client:
        lines = [line for line in (await client.post(url + path, json=body)).text.splitlines() if line]
    between = lines[lines.index(next(line for line in lines if line.startswith("data: "))) :]
    assert between.count(COMMENT) > 3


async def client_without_wait(world: World, path: str, body: dict[str, Any]) -> list[str]:
    response = await world.client.post(path, json=body)
    return [line for line in response.iter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_a_cold_load_is_commented(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """What answers is not known yet: those headers are left out, and the last event says it."""
    loading = asyncio.Event()
    start = ScriptedEngine.start

    async def slow(engine: ScriptedEngine, *arguments: Any) -> None:
        await loading.wait()
        await start(engine, *arguments)

    monkeypatch.setattr(ScriptedEngine, "start", slow)
    async with serve(start=False) as world, over_http(world) as url, asyncio.timeout(30):
        starting = asyncio.create_task(world.deployments.start())
        await until(lambda: world.engines)
        async with httpx.AsyncClient() as client, client.stream("POST", url + path, json=body) as response:
            assert response.status_code == 200
            assert "x-model-version" not in response.headers and response.headers["x-request-id"]
            lines = response.aiter_lines()
            await commented(lines)
            loading.set()
            text = "\n".join([line async for line in lines])
        assert "demo" in text and "error" not in text.replace('"code"', "")
        await starting


@pytest.mark.parametrize("fails", [EngineFailed("the engine is dead"), RuntimeError("secret")])
@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_an_error_after_the_headers_is_the_last_event(
    serve: Serve, path: str, body: dict[str, Any], fails: Exception
) -> None:
    hold = asyncio.Event()
    planted = {"hold": hold, "failure": fails, "fail_after": 0}
    async with serve(engine=planted) as world, over_http(world) as url, asyncio.timeout(30):
        async with httpx.AsyncClient() as client, client.stream("POST", url + path, json=body) as response:
            lines = response.aiter_lines()
            await commented(lines, 1)
            hold.set()
            told = [line async for line in lines if line and line != COMMENT]
        code = "generation_failed" if isinstance(fails, EngineFailed) else "internal"
        assert "secret" not in "".join(told)
        if path.startswith("/v1/"):
            assert told[-1] == "data: [DONE]" and len(told) == 2
            assert json.loads(told[0].removeprefix("data: "))["error"]["code"] == code
        else:
            assert told[0] == "event: error" and len(told) == 2
            assert json.loads(told[1].removeprefix("data: "))["code"] == code


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_known_at_once_is_a_status(serve: Serve, stream: bool) -> None:
    async with serve(max_in_progress=1, engine={"hold": asyncio.Event()}) as world:
        post = world.client.post
        error(await post("/generate", json={"inputs": "x", "model": "none", "stream": stream}), 404, "not_found")
        long = {"inputs": "a " * 900, "stream": stream}
        error(await post("/generate", json=long), 422, "context_overflow")
        openai_error(
            await post("/v1/chat/completions", json={"messages": [], "stream": stream}), 400, "invalid_request"
        )
        several = {"prompt": ["a", "b"], "stream": stream}
        openai_error(await post("/v1/completions", json=several), 400, "invalid_request")


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_leaving_before_the_first_token_frees_the_engine(serve: Serve, path: str, body: dict[str, Any]) -> None:
    async with serve(engine={"hold": asyncio.Event()}) as world, over_http(world) as url, asyncio.timeout(30):
        async with httpx.AsyncClient() as client, client.stream("POST", url + path, json=body) as response:
            await commented(response.aiter_lines(), 1)
            assert world.engine.alive
        await until(lambda: not world.engine.alive)
        await until(lambda: world.app.state.service.answers.admission.in_progress == 0)


async def test_the_headers_wait_for_the_prompt_of_a_loaded_version(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building it may take longer than the headers' second, but never long; who leaves then leaves nothing behind."""
    built = asyncio.Event()

    async def slow(request: GenerationRequest, deployment: Deployment) -> Prompt:
        await built.wait()
        return await build(request, deployment)

    def waits() -> bool:
        return any("Opening.begun" in repr(task) for task in asyncio.all_tasks())

    monkeypatch.setattr("service.generation.answers.build", slow)
    async with serve() as world, over_http(world) as url, asyncio.timeout(30), httpx.AsyncClient() as client:
        leaving = asyncio.create_task(client.post(f"{url}/generate_stream", json={"inputs": "x"}))
        await until(waits)
        leaving.cancel()
        await until(lambda: not waits())
        await until(lambda: world.app.state.service.answers.admission.in_progress == 0)
        staying = asyncio.create_task(client.post(f"{url}/generate_stream", json={"inputs": "x"}))
        await until(waits)
        built.set()
        assert (await staying).headers["x-model-version"] == "demo:1"


async def test_huggingfaces_client_passes_over_comments(serve: Serve) -> None:
    hold = asyncio.Event()
    async with serve(engine={"hold": hold}) as world, over_http(world) as url, asyncio.timeout(30):
        client = AsyncInferenceClient(base_url=url)
        stream = await client.text_generation("x", stream=True)  # returns with the headers, which a comment follows
        hold.set()
        assert "".join([text async for text in stream]) == REPLY
        hold.clear()
        chat = await client.chat_completion(CHAT, stream=True, temperature=0, seed=1)
        hold.set()
        assert "".join([each.choices[0].delta.content or "" async for each in chat]) == REPLY


async def test_openais_client_passes_over_comments_and_raises_the_error(serve: Serve) -> None:
    openai = pytest.importorskip("openai")
    hold = asyncio.Event()
    async with serve(engine={"hold": hold}) as world, over_http(world) as url, asyncio.timeout(30):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        stream = await client.chat.completions.create(model="demo", messages=CHAT, temperature=0, stream=True)
        hold.set()
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == REPLY
        hold.clear()
        world.engine.failure, world.engine.fail_after = EngineFailed("the engine is dead"), 0
        stream = await client.chat.completions.create(model="demo", messages=CHAT, stream=True)
        hold.set()
        with pytest.raises(openai.APIError, match="dead"):
            async for _ in stream:
                pass
