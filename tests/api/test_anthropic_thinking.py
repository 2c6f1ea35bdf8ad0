"""Thinking in Anthropic's messages: blocks of their own, switched by the request, counted, never sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.api.anthropic import ASK, WEATHER, ask, count, gathered, refused, streamed
from tests.fake_service import World, over_http, says, serving
from tests.tools import REASONING, WITH_TOOLS

THOUGHT, SAID = "hello world, 안녕하세요", "도시락!"
SPOKEN = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"
ON = {"type": "enabled", "budget_tokens": 100}
EFFORTS = REASONING + "{{ '[' ~ reasoning_effort ~ ']' if reasoning_effort is defined else '' }}"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, chat_template=REASONING) as served:
        says(served, SPOKEN)
        yield served


def prompts(world: World) -> list[str]:
    tokenizer = world.tokenizer
    return [tokenizer.decode(list(each.token_ids), skip_special_tokens=False) for each in world.engine.requests]


async def test_thinking_is_a_block_streamed_or_not(world: World) -> None:
    for more in ({}, {"thinking": ON}, {"thinking": {"type": "adaptive"}}):
        whole = await ask(world, **more)
        thought, said = whole["content"]
        assert (thought["type"], thought["thinking"]) == ("thinking", THOUGHT) and thought["signature"]
        assert said == {"type": "text", "text": SAID}
        counted = whole["usage"]["output_tokens_details"]["thinking_tokens"]
        assert 0 < counted < whole["usage"]["output_tokens"]
        parts = gathered(await streamed(world, **more))
        assert parts["content"] == whole["content"] and parts["usage"] == whole["usage"]


async def test_the_signature_comes_at_the_blocks_end(world: World) -> None:
    found = await streamed(world)
    kinds = [each["delta"]["type"] for each in found if each["type"] == "content_block_delta" and each["index"] == 0]
    assert set(kinds[:-1]) == {"thinking_delta"} and kinds[-1] == "signature_delta"


async def test_omitted_thinking_has_no_text(world: World) -> None:
    more = {"thinking": {**ON, "display": "omitted"}}
    whole = await ask(world, **more)
    assert whole["content"][0]["thinking"] == "" and whole["content"][0]["signature"]
    assert gathered(await streamed(world, **more))["content"] == whole["content"]
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_disabled_switches_it_off(world: World) -> None:
    says(world, SAID)
    off: dict[str, Any] = {"thinking": {"type": "disabled"}}
    whole = await ask(world, **off)
    assert [each["type"] for each in whole["content"]] == ["text"]
    assert prompts(world)[0].endswith("<think>\n\n</think>\n\n")
    used = whole["usage"]
    assert await count(world, **off) == used["input_tokens"] + used["cache_read_input_tokens"]
    assert await count(world) < await count(world, **off), "the mark that closes it is in the prompt"


async def test_a_limit_inside_of_thinking(world: World) -> None:
    whole = await ask(world, max_tokens=8)
    assert whole["stop_reason"] == "max_tokens" and [each["type"] for each in whole["content"]] == ["thinking"]
    assert THOUGHT.startswith(whole["content"][0]["thinking"])
    assert gathered(await streamed(world, max_tokens=8))["content"] == whole["content"]


async def test_earlier_thinking_is_not_sent_again_and_the_receipt_says_so(world: World) -> None:
    question = {"role": "user", "content": "hello"}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "안녕"}]}
    block = {"type": "thinking", "thinking": "hello world", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    with_it = {**answer, "content": [block, hidden, *answer["content"]]}
    shown = await ask(world, messages=[question, with_it, question])
    await ask(world, messages=[question, answer, question])
    first, second = prompts(world)
    assert first == second
    assert any("reasoning of an earlier answer is not sent again" in each for each in shown["context"]["notes"])


async def test_efforts_reach_a_template_that_knows_them(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=EFFORTS) as world:
        for effort in ("low", "high", "max"):
            await ask(world, output_config={"effort": effort})
        assert [each[each.rindex("[") :] for each in prompts(world)] == ["[low]", "[high]", "[max]"]


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        (WITH_TOOLS, {"thinking": ON}, "thinking"),
        (WITH_TOOLS, {"output_config": {"effort": "low"}}, "output_config.effort"),
        (REASONING, {"output_config": {"effort": "max"}}, "output_config.effort"),
        (REASONING.replace("enable_thinking", "unknown"), {"thinking": {"type": "disabled"}}, "thinking"),
        (REASONING, {"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        (REASONING, {"thinking": {"type": "enabled", "budget_tokens": 200}}, "thinking.budget_tokens"),
        (REASONING, {"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens"),
        (REASONING, {"thinking": {"type": "disabled", "display": "omitted"}}, "thinking.display"),
        (REASONING, {"thinking": {"type": "between_tools"}}, "thinking.type"),
        (REASONING, {"thinking": ON, "chat_template_kwargs": {"enable_thinking": False}}, "thinking"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(
    tmp_path: Path, template: str, fields: dict[str, Any], param: str
) -> None:
    async with serving(tmp_path, chat_template=template) as world:
        response = await world.client.post("/v1/messages", json={**ASK, **fields})
        assert refused(response, 400, "invalid_request_error")["param"] == param
        assert not world.engine.requests


async def test_the_real_client(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=REASONING) as world, over_http(world) as url:
        says(world, SPOKEN)
        client = anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0)
        asked: dict[str, Any] = {"model": "demo", "max_tokens": 200, "messages": ASK["messages"], "thinking": ON}
        message = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed_message = await stream.get_final_message()
        assert [each.to_dict() for each in message.content] == [each.to_dict() for each in streamed_message.content]
        chat = [*ASK["messages"], message.to_param(), {"role": "user", "content": "again"}]
        answer = await client.messages.create(**{**asked, "messages": chat})
        assert [each.type for each in answer.content] == ["thinking", "text"]
        assert THOUGHT not in prompts(world)[-1] and SAID in prompts(world)[-1]


async def test_thinking_before_calls(tmp_path: Path) -> None:
    tools = WITH_TOOLS.partition("{{ bos_token }}")[0]
    async with serving(tmp_path, chat_template=tools + REASONING.replace("call>", "tool_call>")) as world:
        says(world, f'{SPOKEN}\n<tool_call>\n{{"name": "weather", "arguments": {{}}}}\n</tool_call>')
        whole = await ask(world, tools=[WEATHER])
        assert [each["type"] for each in whole["content"]] == ["thinking", "text", "tool_use"]
        parts = gathered(await streamed(world, tools=[WEATHER]))
        assert [each["type"] for each in parts["content"]] == ["thinking", "text", "tool_use"]
        assert parts["content"][0] == whole["content"][0] and parts["stop_reason"] == "tool_use"
