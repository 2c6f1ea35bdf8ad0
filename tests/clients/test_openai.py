"""openai-python works unchanged: texts, chats, streams, structured output, tools, cancellation, retries and errors."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from service.errors import EngineKilled, Unavailable
from tests.api.conftest import KEY, Serve
from tests.clients.speaking import calling, failing_once, says
from tests.fake_service import REPLY, over_http
from tests.waiting import until

CHAT: list[Any] = [{"role": "user", "content": "안녕하세요"}]


class Order(BaseModel):
    menu: Literal["불고기 도시락", "비빔밥"]
    count: int


class Price(BaseModel):
    """The price of a menu."""

    menu: str


ANSWERS = {
    "두 개": '{"menu": "불고기 도시락", "count": 2}',
    "얼마예요?": calling("Price", menu="비빔밥"),
    "8,900원": "비빔밥은 8,900원이에요.",
    "안녕하세요": REPLY,
    "길게": "네, " * 1000,
}


async def test_openai(serve: Serve) -> None:
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
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 1
        text = await client.completions.create(model="demo:1", prompt="x", max_tokens=3, echo=True, logprobs=1)
        assert text.choices[0].text.startswith("x")
        with pytest.raises(openai.BadRequestError, match="the window has 8192") as refused:
            await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "a" * 9000}])
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-4o", messages=CHAT)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()


async def test_openai_with_a_key(serve: Serve, tmp_path: Path) -> None:
    """What the client tries again by itself, and what its caller does, is one answer."""
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


async def test_no_client_sends_again_what_kills_engines(serve: Serve) -> None:
    """OpenAI's client tries 408, 409, 429 and 500 and above again, huggingface_hub's what its caller says."""
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


async def test_structured_output_and_tools(serve: Serve) -> None:
    async with serve(engine={"script": says(ANSWERS)}) as world, over_http(world) as url:
        chat = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0).chat.completions
        asked: list[Any] = [{"role": "user", "content": "두 개 주세요"}]
        parsed = await chat.parse(model="demo", messages=asked, response_format=Order)
        assert parsed.choices[0].message.parsed == Order(menu="불고기 도시락", count=2)
        async with chat.stream(model="demo", messages=asked, response_format=Order) as events:
            kinds = {event.type async for event in events}
            whole = await events.get_final_completion()
        assert kinds == {"chunk", "content.delta", "content.done"}
        assert whole.choices[0].message.parsed == parsed.choices[0].message.parsed
        again = [*asked, parsed.choices[0].message, *asked]
        assert (await chat.create(model="demo", messages=again)).choices[0].message.content == ANSWERS["두 개"]
        messages: list[Any] = [{"role": "user", "content": "비빔밥 얼마예요?"}]
        tools: list[Any] = [openai.pydantic_function_tool(Price)]
        message = (await chat.parse(model="demo", messages=messages, tools=tools)).choices[0].message
        [call] = message.tool_calls or []
        assert call.function.parsed_arguments == Price(menu="비빔밥")
        async with chat.stream(model="demo", messages=messages, tools=tools, tool_choice="required") as events:
            async for _ in events:
                pass
            [streamed] = (await events.get_final_completion()).choices[0].message.tool_calls or []
        assert streamed.function == call.function
        both = [*messages, {"role": "assistant", "tool_calls": [streamed]}]
        both.append({"role": "tool", "tool_call_id": streamed.id, "content": "8,900원"})
        assert (await chat.create(model="demo", messages=both)).choices[0].message.content == ANSWERS["8,900원"]
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "8,900원"}]
        answer = await chat.create(model="demo", messages=messages, tools=tools)
        assert answer.choices[0].message.content == "비빔밥은 8,900원이에요."


async def test_retry_after_is_heeded_and_a_reader_may_leave(serve: Serve) -> None:
    engine = {"script": failing_once(says(ANSWERS), "다시"), "step_seconds": 0.001}
    async with serve(engine=engine) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=2)
        again: list[Any] = [{"role": "user", "content": "다시 안녕하세요"}]
        answer = await client.chat.completions.create(model="demo", messages=again)
        assert answer.choices[0].message.content == REPLY
        long: list[Any] = [{"role": "user", "content": "길게"}]
        async with await client.chat.completions.create(model="demo", messages=long, stream=True) as stream:
            await anext(stream)
        await until(lambda: len(world.engine.aborted) == 2 and not world.engine.alive)
