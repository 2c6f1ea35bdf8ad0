"""huggingface_hub's InferenceClient works unchanged: texts, chats, streams, tools, structured output, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import OverloadedError, ValidationError

from tests.api.conftest import KEY, Serve
from tests.clients.speaking import calling, says
from tests.fake_service import REPLY, over_http

CHAT = [{"role": "user", "content": "안녕하세요"}]
ORDER = {
    "type": "object",
    "properties": {"menu": {"enum": ["불고기 도시락", "비빔밥"]}, "count": {"type": "integer"}},
    "required": ["menu", "count"],
    "additionalProperties": False,
}
SPOKEN = '{"menu": "불고기 도시락", "count": 2}'
PRICE = {"type": "object", "properties": {"menu": {"type": "string"}}, "required": ["menu"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "price", "description": "", "parameters": PRICE}}]
ANSWERS = {"두 개": SPOKEN, "얼마예요?": calling("price", menu="비빔밥"), "8,900원": "비빔밥은 8,900원이에요."}


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
        with world.app.state.service.answers.admission.entered(1), pytest.raises(OverloadedError):
            await client.text_generation("x", best_of=2)


async def test_huggingface_structured_output_and_tools(serve: Serve) -> None:
    async with serve(engine={"script": says(ANSWERS)}) as world, over_http(world) as url:
        client = AsyncInferenceClient(base_url=url)
        grammar: Any = {"type": "json", "value": ORDER}
        by_grammar = await client.text_generation("두 개", grammar=grammar, max_new_tokens=99)
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER, "strict": True}}
        asked: list[Any] = [{"role": "user", "content": "두 개 주세요"}]
        by_format = await client.chat_completion(asked, response_format=wanted, max_tokens=99)
        assert by_grammar == by_format.choices[0].message.content == SPOKEN
        chat: list[Any] = [{"role": "user", "content": "비빔밥 얼마예요?"}]
        message = (
            (await client.chat_completion(chat, tools=TOOLS, tool_choice="auto", max_tokens=99)).choices[0].message
        )
        [call] = message.tool_calls or []
        assert json.loads(call.function.arguments) == {"menu": "비빔밥"}
        chat += [message, {"role": "tool", "tool_call_id": call.id, "content": "8,900원"}]
        answer = await client.chat_completion(chat, tools=TOOLS, max_tokens=99)
        assert answer.choices[0].message.content == "비빔밥은 8,900원이에요."
