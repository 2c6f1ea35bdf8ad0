"""Clients that people have, unchanged, over real HTTP: huggingface_hub's; OpenAI's and Ollama's where installed."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import OverloadedError, ValidationError

from service.errors import EngineKilled, Unavailable
from tests.api.conftest import KEY, Serve
from tests.api.ollama_golden import CALLS, REFUSED, exchanges, recorded, whole
from tests.fake_service import REPLY, over_http
from tests.waiting import until

CHAT = [{"role": "user", "content": "안녕하세요"}]


async def test_huggingface_text_generation(serve: Serve) -> None:
    async with serve() as world, over_http(world) as url:
        client = AsyncInferenceClient(base_url=url)
        assert await client.text_generation("도시락") == REPLY
        assert await client.text_generation("도시락 ", return_full_text=True) == "도시락 " + REPLY
        details = await client.text_generation("x", details=True, best_of=2, seed=1, do_sample=True, top_n_tokens=1)
        assert details.details is not None
        assert details.details.finish_reason == "eos_token"
        assert len(details.details.tokens) == details.details.generated_tokens
        assert details.details.best_of_sequences is not None
        with pytest.raises(ValidationError, match="top_p"):
            await client.text_generation("x", top_p=3.0)


async def test_huggingface_stream(serve: Serve) -> None:
    async with serve() as world, over_http(world) as url:
        client = AsyncInferenceClient(base_url=url)
        texts = [text async for text in await client.text_generation("x", stream=True)]
        assert "".join(texts) == REPLY
        stream = await client.text_generation("x", stream=True, details=True, stop=["하나"])
        events: list[Any] = [event async for event in stream]
        assert events[-1].details.finish_reason == "stop_sequence"
        assert events[-1].generated_text == "안녕하세요, 도시락 "


async def test_huggingface_chat_and_overload(serve: Serve) -> None:
    async with serve(max_in_progress=2, admin_key=KEY) as world, over_http(world) as url:
        client = AsyncInferenceClient(base_url=url, api_key=KEY)
        answer = await client.chat_completion(CHAT, max_tokens=50, temperature=0)
        assert answer.choices[0].message.content == REPLY
        shown = [each async for each in await client.chat_completion(CHAT, stream=True, temperature=0, seed=1)]
        assert "".join(each.choices[0].delta.content or "" for each in shown) == REPLY
        with pytest.raises(OverloadedError):
            await client.text_generation("x", best_of=3)


async def test_openai(serve: Serve) -> None:
    openai = pytest.importorskip("openai")
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        assert [model.id async for model in client.models.list()] == ["demo", "demo:1"]
        answer = await client.chat.completions.create(model="demo", messages=CHAT, temperature=0, logprobs=True)
        assert answer.choices[0].message.content == REPLY
        again = [*CHAT, answer.choices[0].message.model_dump(), {"role": "user", "content": "more"}]
        stream = await client.chat.completions.create(
            model="demo", messages=again, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == REPLY
        assert chunks[-1].usage.completion_tokens > 1
        text = await client.completions.create(model="demo:1", prompt="x", max_tokens=3, echo=True, logprobs=1)
        assert text.choices[0].text.startswith("x")
        with pytest.raises(openai.BadRequestError, match="the window has 512") as refused:
            await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "a" * 900}])
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-4o", messages=CHAT)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()


async def test_openai_with_a_key(serve: Serve, tmp_path: Path) -> None:
    """What the client tries again by itself, and what its caller does, is one answer."""
    openai = pytest.importorskip("openai")
    planted = {"fail_after": 0, "failure": Unavailable("planted", retry_after=0.1)}
    database = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(engine=planted, database_url=database) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=5)
        ask = partial(
            client.chat.completions.create, model="demo", messages=CHAT, extra_headers={"Idempotency-Key": "k"}
        )
        first = asyncio.create_task(ask())
        await until(lambda: world.engine.aborted)
        world.engine.fail_after = None
        assert (await first).id == (await ask()).id
        assert len(world.engine.requests) == 2, "the one that failed, and one more"


async def test_ollama(serve: Serve) -> None:
    """Every call of the golden file, and that the file is what the client sends."""
    ollama = pytest.importorskip("ollama")
    assert await recorded(ollama.AsyncClient) == exchanges(), "python -m tests.api.ollama_golden writes it anew"
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"})
        for name, call in CALLS.items():
            if name in REFUSED:
                with pytest.raises(ollama.ResponseError) as refused:
                    await whole(await call(client))
                assert refused.value.status_code == REFUSED[name] and "{" not in refused.value.error
            else:
                assert await whole(await call(client)), name
        assert [each.model for each in (await client.list()).models] == ["demo:latest", "demo:1"]
        parts = await whole(await client.chat("demo", CHAT, stream=True, options={"temperature": 0}))
        assert "".join(part.message.content for part in parts) == REPLY
        assert parts[-1].done_reason == "stop" and parts[-1].eval_count == len(world.tokenizer.encode(REPLY)) + 1
        world.engine.failure, world.engine.fail_after = Unavailable("planted"), 2
        with pytest.raises(ollama.ResponseError, match="planted"):
            await whole(await client.generate("demo", "x", stream=True))
        with pytest.raises(ollama.ResponseError, match="key") as unknown:
            await ollama.AsyncClient(host=url).list()
        assert unknown.value.status_code == 401


async def test_no_client_sends_again_what_kills_engines(serve: Serve) -> None:
    """OpenAI's client tries 408, 409, 429 and 500 and above again, huggingface_hub's what its caller says."""
    openai = pytest.importorskip("openai")
    planted = {"fail_after": 0, "failure": EngineKilled("planted: change the prompt", refused_seconds=600)}
    async with serve(engine=planted) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=5)
        with pytest.raises(openai.BadRequestError, match="change the prompt") as refused:
            await client.chat.completions.create(model="demo", messages=CHAT)
        assert refused.value.code == "engine_killed"
        assert len(world.engine.requests) == 1
        response = await world.client.post("/generate", json={"inputs": "x"})
        assert (response.status_code, response.json()["code"]) == (422, "engine_killed")
        assert response.json()["refused_seconds"] == 600
        assert "retry-after" not in response.headers
