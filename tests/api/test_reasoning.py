"""Reasoning parts in every dialect: apart from the content, streamed or not, counted, asked for and not sent again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from models.repository.repository import Repository
from service.text.grammars import Grammar
from tests.fake_service import World, publish, says, serving
from tests.grammars import fits
from tests.tools import REASONING, WITH_TOOLS

ASK = [{"role": "user", "content": "hello"}]
THOUGHT, SAID = "hello world, 안녕하세요. stop", "Don't stop. 도시락!"
SPOKEN = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, chat_template=REASONING) as served:
        yield served


def tokens_up_to_the_mark(world: World, text: str) -> int:
    ids = world.tokenizer.encode(text, add_special_tokens=False)
    return next(count for count in range(len(ids) + 1) if "</think>" in world.tokenizer.decode(ids[:count]))


async def ask(world: World, path: str = "/v1/chat/completions", **more: Any) -> dict[str, Any]:
    answer = await world.client.post(path, json={"messages": ASK, "max_tokens": 200, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def streamed(world: World, **more: Any) -> tuple[str, str, str, dict[str, Any]]:
    """Reasoning, content, finish reason and usage; all reasoning comes before the content."""
    body = {"messages": ASK, "max_tokens": 200, "stream": True, "stream_options": {"include_usage": True}, **more}
    answer = await world.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    order = ["reasoning_content" if "reasoning_content" in each else "content" for each in deltas if any(each.values())]
    assert order[1:] == sorted(order[1:], reverse=True), order
    reasoning = "".join(each.get("reasoning_content", "") for each in deltas)
    reason = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1]
    return reasoning, "".join(each.get("content", "") for each in deltas), reason, chunks[-1]["usage"]


@pytest.mark.parametrize("is_open", [False, True])
async def test_reasoning_is_apart_from_content_streamed_or_not(world: World, is_open: bool) -> None:
    text = SPOKEN.removeprefix("<think>\n") if is_open else SPOKEN
    says(world, text)
    more: dict[str, Any] = {"chat_template_kwargs": {"opens": True}} if is_open else {}
    body = await ask(world, **more)
    [choice] = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": SAID,
        "refusal": None,
        "reasoning_content": THOUGHT,
    }
    counted = tokens_up_to_the_mark(world, text)
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": counted}
    assert 0 < counted < body["usage"]["completion_tokens"]
    reasoning, content, reason, usage = await streamed(world, **more)
    assert (reasoning, content, reason) == (THOUGHT, SAID, "stop")
    assert usage["completion_tokens_details"] == {"reasoning_tokens": counted}
    logged = await ask(world, logprobs=True, **more)
    tokens = logged["choices"][0]["logprobs"]["content"]
    assert len(tokens) == body["usage"]["completion_tokens"], "each sampled token has its logprob"


async def test_stop_strings_end_content_only(world: World) -> None:
    says(world, SPOKEN)
    for stop, content in (("stop", "Don't "), ("\n", SAID), ("\n\n", SAID), ("think", SAID), ("도시", "Don't stop. ")):
        body = await ask(world, stop=[stop])
        message = body["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (THOUGHT, content), stop
        reasoning, streamed_content, reason, _ = await streamed(world, stop=[stop])
        assert (reasoning, streamed_content, reason) == (THOUGHT, content, "stop")
    says(world, "Don't <thstop it")
    assert (await ask(world, stop=["<th"]))["choices"][0]["message"]["content"] == "Don't "
    says(world, "<thstop it")
    assert (await ask(world, stop=["<thst"]))["choices"][0]["message"]["content"] == ""


async def test_a_limit_inside_of_reasoning_leaves_no_content(world: World) -> None:
    says(world, SPOKEN)
    body = await ask(world, max_tokens=12)
    message, usage = body["choices"][0]["message"], body["usage"]
    assert message["content"] == "" and body["choices"][0]["finish_reason"] == "length"
    assert message["reasoning_content"] and THOUGHT.startswith(message["reasoning_content"])
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 12
    reasoning, content, reason, _ = await streamed(world, max_tokens=12)
    assert (reasoning, content, reason) == (message["reasoning_content"], "", "length")


async def test_native_and_ollama_keep_it_apart_too(world: World) -> None:
    says(world, SPOKEN)
    counted = tokens_up_to_the_mark(world, SPOKEN)
    native = (await world.client.post("/generate", json={"messages": ASK})).json()
    assert (native["generated_text"], native["reasoning"]) == (SAID, THOUGHT)
    assert native["usage"]["reasoning_tokens"] == counted
    events = await world.client.post("/generate_stream", json={"messages": ASK})
    shown = [json.loads(line[5:]) for line in events.text.splitlines() if line.startswith("data:")]
    assert "".join(each.get("reasoning", "") for each in shown) == THOUGHT
    assert "".join(each["token"]["text"] for each in shown) == shown[-1]["generated_text"] == SAID
    body = {"model": "demo", "messages": ASK, "stream": False}
    chat = (await world.client.post("/api/chat", json=body)).json()["message"]
    assert chat == {"role": "assistant", "content": SAID, "thinking": THOUGHT}
    lines = (await world.client.post("/api/chat", json={**body, "stream": True})).text.splitlines()
    messages = [json.loads(each)["message"] for each in lines]
    assert "".join(each.get("thinking", "") for each in messages) == THOUGHT
    assert "".join(each["content"] for each in messages) == SAID
    asked = {"model": "demo", "prompt": "hello", "stream": False}
    generated = (await world.client.post("/api/generate", json=asked)).json()
    assert (generated["response"], generated["thinking"]) == (SAID, THOUGHT)


async def test_raw_prompts_have_no_parts(world: World) -> None:
    says(world, SPOKEN)
    native = (await world.client.post("/generate", json={"inputs": "hello"})).json()
    assert native["generated_text"] == SPOKEN and "reasoning" not in native
    assert "reasoning_tokens" not in native["usage"]
    plain = await world.client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 200})
    assert plain.json()["choices"][0]["text"] == SPOKEN


async def test_reasoning_is_switched_by_the_field_of_each_dialect(world: World) -> None:
    chat = "/v1/chat/completions"
    for path, more, end in (
        (chat, {"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        (chat, {"reasoning_effort": "medium"}, "assistant\n"),
        (chat, {"reasoning_effort": None}, "assistant\n"),
        (chat, {"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n"),
        (chat, {"chat_template_kwargs": {"enable_thinking": None}}, "assistant\n"),
        ("/api/chat", {"think": False, "model": "demo"}, "<think>\n\n</think>\n\n"),
        ("/api/chat", {"think": True, "model": "demo"}, "assistant\n"),
        ("/api/generate", {"think": False, "model": "demo", "prompt": "hello"}, "<think>\n\n</think>\n\n"),
    ):
        given: dict[str, Any] = {**more} if "prompt" in more else {"messages": ASK, **more}
        answer = await world.client.post(path, json=given)
        assert answer.status_code == 200, answer.text
        prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
        assert prompt.endswith(end), more
    says(world, SPOKEN)
    body = await ask(world, reasoning_effort="none")
    assert body["choices"][0]["message"]["content"] == SPOKEN, "the prompt has closed the part"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("template", "more", "param"),
    [
        (REASONING, {"reasoning_effort": "high"}, "reasoning_effort"),
        (REASONING, {"chat_template_kwargs": {"thinking_budget": 5}}, "chat_template_kwargs.thinking_budget"),
        (
            REASONING,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "reasoning_effort",
        ),
        (WITH_TOOLS, {"reasoning_effort": "low"}, "reasoning_effort"),
        (WITH_TOOLS, {"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        (WITH_TOOLS, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}, None),
        (WITH_TOOLS + "{{ reasoning_effort }}", {"reasoning_effort": "high"}, None),
        (WITH_TOOLS, {"messages": [{**ASK[0], "reasoning_content": "x"}]}, "messages[0].reasoning_content"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(
    tmp_path: Path, template: str, more: dict[str, Any], param: str | None
) -> None:
    async with serving(tmp_path, chat_template=template) as world:
        answer = await world.client.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 2, **more})
        if param is None:
            assert answer.status_code == 200, answer.text
        else:
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param


async def test_ollama_refuses_to_think_where_nothing_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        for think, status in ((True, 400), ("high", 400), (False, 200), (None, 200)):
            body = {"model": "demo", "messages": ASK, "think": think}
            answer = await world.client.post("/api/chat", json=body)
            assert answer.status_code == status, answer.text
            assert status == 200 or "`think` cannot act" in answer.json()["error"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_of_earlier_answers_is_not_sent_again(world: World, field: str) -> None:
    chat = [*ASK, {"role": "assistant", "content": SAID, field: THOUGHT}, *ASK]
    body = await ask(world, messages=chat)
    plain = await ask(world, messages=[*ASK, {"role": "assistant", "content": SAID}, *ASK])
    sent = [request.token_ids for request in world.engine.requests]
    assert sent[0] == sent[1]
    tokens = len(world.tokenizer.encode(THOUGHT, add_special_tokens=False))
    assert body["context"]["notes"] == [f"the reasoning of an earlier answer is not sent again: {tokens} tokens"]
    assert {**body["context"], "notes": []} == plain["context"]


async def test_calls_behind_reasoning_are_read(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=WITH_TOOLS + "{# #}{{ '' if true else '</think>' }}") as world:
        call = '<tool_call>\n{"name": "order", "arguments": {}}\n</tool_call>'
        says(world, f"<think>perhaps {call}</think>\n\nSoon. {call}")
        tools = [{"type": "function", "function": {"name": "order"}}]
        [choice] = (await ask(world, tools=tools))["choices"]
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == (f"perhaps {call}", "Soon.")
        assert [each["function"]["name"] for each in message["tool_calls"]] == ["order"]
        assert choice["finish_reason"] == "tool_calls"


async def test_a_grammar_holds_for_the_content(world: World) -> None:
    choice: dict[str, Any] = {"structured_outputs": {"choice": ["yes"]}}
    opened, closed = {"opens": True}, {"enable_thinking": False}
    for kwargs, right, wrong in (
        ({}, ("<think>a</think>\n\nyes", "yes"), ("a</think>yes", "no")),
        (opened, ("a {</think>\n\nyes",), ("yes", "a</think>no")),
        (closed, ("yes",), ("a</think>yes",)),
    ):
        await ask(world, chat_template_kwargs=kwargs, **choice)
        grammar = Grammar(world.engine.requests[-1].params.grammar, "f")
        assert [fits(grammar, text) for text in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)
    await world.client.post("/v1/completions", json={"prompt": "hello", "guided_choice": ["yes"]})
    assert fits(Grammar(world.engine.requests[-1].params.grammar, "f"), "yes"), "a raw prompt has no reasoning"


async def test_a_forced_call_comes_behind_reasoning(tmp_path: Path) -> None:
    publish(Repository(tmp_path), chat_template=WITH_TOOLS + "{{ '' if true else '</think>' }}")
    call = '<tool_call>\n{"name": "order", "arguments": {}}\n</tool_call>'
    async with serving(tmp_path) as world:
        function = {"name": "order", "strict": True}
        for choice, plain in (("required", False), ("auto", True)):
            await ask(world, tools=[{"type": "function", "function": function}], tool_choice=choice)
            grammar = Grammar(world.engine.requests[-1].params.grammar, "f")
            assert fits(grammar, f"<think>a {call[:20]}</think>\n\n{call}") and fits(grammar, call)
            assert fits(grammar, "<think>a</think>\n\nhello") is plain
            assert not fits(grammar, f"<think>a</think>\n\n{call.replace('{}', '[]')}")
        body = {"messages": ASK, "tools": [{"type": "function", "function": function}], "ignore_eos": True}
        refused = await world.client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "ignore_eos"


async def test_a_guard_sees_reasoning_too(tmp_path: Path) -> None:
    publish(Repository(tmp_path), chat_template=REASONING)
    (tmp_path / "guard.toml").write_text('[patterns]\nphone = "mask"\n')
    async with serving(tmp_path, guard_file=tmp_path / "guard.toml") as world:
        says(world, "<think>call 010-1234-5678</think>\n\nor 010-8765-4321 now")
        message = (await ask(world))["choices"][0]["message"]
        assert "1234" not in message["reasoning_content"] and "8765" not in message["content"]
        assert message["reasoning_content"].startswith("call ") and message["content"].endswith(" now")
        reasoning, content, _, _ = await streamed(world)
        assert (reasoning, content) == (message["reasoning_content"], message["content"])


def text_of(logprobs: list[dict[str, Any]]) -> str:
    return b"".join(bytes(token["bytes"]) for token in logprobs).decode()


async def test_logprobs_of_a_response_are_those_of_its_text(world: World) -> None:
    """Not of the reasoning, its marks and the blanks around them."""
    body = {"input": "hello", "include": ["message.output_text.logprobs"]}
    for thought in (THOUGHT, "hello\n\n world \n one"):
        says(world, f"<think>\n{thought}\n</think>\n\n{SAID}")
        answer = (await world.client.post("/v1/responses", json=body)).json()
        part = next(each for each in answer["output"] if each["type"] == "message")["content"][0]
        assert part["text"] == SAID and text_of(part["logprobs"]) == f"{SAID}<|im_end|>"
        events = (await world.client.post("/v1/responses", json={**body, "stream": True})).text
        deltas = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
        texts = [each for each in deltas if each["type"] == "response.output_text.delta"]
        assert text_of([token for each in texts for token in each["logprobs"]]) == SAID
    answer = (await world.client.post("/v1/responses", json={**body, "max_output_tokens": 6})).json()
    assert [each["content"][0].get("logprobs") for each in answer["output"]] == [None, []], "cut inside its reasoning"
