"""gpt-oss's channels in every dialect: reasoning, content and calls apart; grammars keep their channel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.text.detokenizer import HIDDEN
from service.text.grammars import Grammar
from service.text.tools import Content, Thought
from service.text.tools.formats import HARMONY
from service.text.tools.harmony import ChannelBoundary, ChannelReader
from tests.api import anthropic
from tests.api.reading import events
from tests.api.test_cut_calls import ASK, BY_NAME, TOOLS, chat, world_of
from tests.api.test_tools import streamed
from tests.fake_service import World, says
from tests.grammars import fits

THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant"
SEVERAL = (
    f"{THOUGHT}<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>analysis<|message|>More."
    "<|end|><|start|>assistant<|channel|>final<|message|>Done."
)
SPOKEN = f"{THOUGHT}<|channel|>final<|message|>Hello there."
CALL = '<|channel|>commentary to=functions.order <|constrain|>json<|message|>{"count": 2}'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, BY_NAME["gpt-oss"].template) as it:
        yield it


async def test_channels_are_apart_in_every_dialect(world: World) -> None:
    says(world, SPOKEN)
    plain: dict[str, Any] = {"messages": ASK, "max_tokens": 300}
    message = (await world.client.post("/v1/chat/completions", json=plain)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("They greet.", "Hello there.")
    told = (await world.client.post("/api/chat", json={"model": "demo", "messages": ASK, "stream": False})).json()
    assert (told["message"]["thinking"], told["message"]["content"]) == ("They greet.", "Hello there.")
    blocks = (await world.client.post("/v1/messages", json={"model": "demo", **plain})).json()["content"]
    assert [each["type"] for each in blocks] == ["thinking", "text"] and blocks[1]["text"] == "Hello there."
    output = (await world.client.post("/v1/responses", json={"input": "hello"})).json()["output"]
    assert [each["type"] for each in output] == ["reasoning", "message"]
    content, calls, reason, deltas = await streamed(world, tools=TOOLS, max_tokens=300)
    assert (content, calls, reason) == ("Hello there.", [], "stop")
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "They greet."


async def test_a_call_behind_its_reasoning(world: World) -> None:
    says(world, THOUGHT + CALL)
    choice = await chat(world, ASK)
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("They greet.", None)
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("order", {"count": 2})
    says(world, f"{THOUGHT}{CALL.replace('order', 'unknown')}")
    assert (await chat(world, ASK))["message"]["content"] == '{"count": 2}'


async def test_a_limit_shows_no_header(world: World) -> None:
    says(world, SPOKEN)
    shown = set()
    for most in range(1, 70):
        message = (await chat(world, ASK, max_tokens=most))["message"]
        shown.add((message.get("reasoning_content", ""), message["content"]))
    assert all("They greet.".startswith(a) and "Hello there.".startswith(b) for a, b in shown), shown


async def test_grammars_keep_the_channels(world: World) -> None:
    async def grammar(**more: Any) -> Grammar:
        await chat(world, ASK, **more)
        return Grammar(world.engine.requests[-1].params.grammar, "f")

    forced = await grammar(tool_choice="required")
    said = f"{CALL}<|call|>"
    assert fits(forced, said) and fits(forced, THOUGHT + said) and not fits(forced, SPOKEN)
    chosen = await grammar(tools=None, structured_outputs={"choice": ["yes"]})
    assert fits(chosen, f"{THOUGHT}<|channel|>final<|message|>yes") and fits(chosen, "<|channel|>final<|message|>yes")
    assert not fits(chosen, "yes") and not fits(chosen, f"{THOUGHT}<|channel|>final<|message|>no")


@pytest.mark.parametrize(
    ("text", "stop", "content"),
    [
        *((SPOKEN, stop, "Hello there.") for stop in ("final", "assistant", "message", "<|", "They")),
        (SPOKEN, "there", "Hello "),
        (SPOKEN.removeprefix(THOUGHT), "final", "Hello there."),
        (SPOKEN.removeprefix(THOUGHT), "there", "Hello "),
        (SEVERAL, "More", "Let me look.\nDone."),
        (SEVERAL, "look", "Let me "),
        (SEVERAL, "Done", "Let me look."),
        (SEVERAL, "k.\nD", "Let me look.\nDone."),
    ],
)
async def test_stop_strings_are_searched_in_the_texts_of_messages(
    world: World, text: str, stop: str, content: str
) -> None:
    says(world, text)
    choice = await chat(world, ASK, stop=[stop])
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, "stop")
    assert (await streamed(world, tools=TOOLS, max_tokens=400, stop=[stop]))[0] == content


async def test_a_stop_string_ends_a_call_and_not_its_header(world: World) -> None:
    says(world, THOUGHT + CALL)
    [call] = (await chat(world, ASK, stop=["order"]))["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"count": 2}
    [call] = (await chat(world, ASK, stop=["2"]))["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"count": '


def test_what_is_searched_does_not_depend_on_cuts() -> None:
    text = f"{SEVERAL}<|end|><|start|>assistant{CALL}<|call|> x <|start|>y"
    whole = ChannelBoundary(HARMONY, None).searched(text, is_last=True)
    shown = [part for part in whole.split(HIDDEN) if part]
    assert len(whole) == len(text) and shown == ["Let me look.", "Done.", '{"count": 2}', " x "]
    for size in (1, 2, 3, 7):
        boundary = ChannelBoundary(HARMONY, None)
        parts = [boundary.searched(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join(parts) + boundary.searched("", is_last=True) == whole


def test_a_loop_of_reasoning_is_read_to_its_end() -> None:
    """More messages than Python has frames; each begins anew, as a small model's loop does."""
    reader = ChannelReader(HARMONY, {})
    looped = [piece for _ in range(3000) for piece in reader.push("<|channel|>analysis<|message|>x")]
    pieces = [*looped, *reader.push("<|channel|>final<|message|>Done."), *reader.finish()]
    assert [each for each in pieces if isinstance(each, Content)] == [Content("Done.")]
    assert "".join(each.text for each in pieces if isinstance(each, Thought)) == "x" * 3000


async def test_messages_of_one_answer_are_apart_whole_streamed_and_stored(world: World) -> None:
    says(world, SEVERAL)
    reasoning, content = "They greet.\nMore.", "Let me look.\nDone."
    message = (await chat(world, ASK))["message"]
    assert (message["reasoning_content"], message["content"]) == (reasoning, content)
    told, _, _, deltas = await streamed(world, tools=TOOLS, max_tokens=400)
    assert (told, "".join(each.get("reasoning_content", "") for each in deltas)) == (content, reasoning)
    kept = (await world.client.post("/v1/conversations", json={})).json()["id"]
    body = {"input": "hello", "conversation": kept}
    output = (await world.client.post("/v1/responses", json=body)).json()["output"]
    assert [(each["type"], each["content"][0]["text"]) for each in output] == [
        ("reasoning", "They greet."),
        ("message", "Let me look."),
        ("reasoning", "\nMore."),
        ("message", "\nDone."),
    ]
    listed = (await world.client.get(f"/v1/conversations/{kept}/items?order=asc")).json()["data"]
    assert [each["content"][0]["text"] for each in listed] == ["hello", reasoning, content]


async def test_a_continued_answers_events_have_no_marks(world: World) -> None:
    """Nothing of it is read as reasoning from its beginning, but channels may follow."""
    final = "<|start|>assistant<|channel|>final<|message|>More."
    says(world, f"lo there.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>{final}")
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hel"}]
    body = {"messages": begun, "continue_final_message": True, "parameters": {"max_new_tokens": 200}}
    whole = (await world.client.post("/generate", json=body)).json()
    told = events(await world.client.post("/generate_stream", json=body))
    assert "".join(each["token"]["text"] for each in told) == told[-1]["generated_text"] == whole["generated_text"]
    assert "".join(each.get("reasoning", "") for each in told) == whole["reasoning"] == "Hm."


async def test_anthropics_blocks_are_those_of_its_stream(world: World) -> None:
    says(world, SEVERAL)
    whole = await anthropic.ask(world, max_tokens=400)
    shown = [each.get("thinking") or each.get("text") for each in whole["content"]]
    assert shown == ["They greet.", "Let me look.", "\nMore.", "\nDone."]
    assert anthropic.gathered(await anthropic.streamed(world, max_tokens=400))["content"] == whole["content"]


async def test_logprobs_of_a_response_have_no_marks_and_no_reasoning(world: World) -> None:
    says(world, SEVERAL)
    body = {"input": "hello", "include": ["message.output_text.logprobs"]}
    output = (await world.client.post("/v1/responses", json=body)).json()["output"]
    messages = [each["content"][0] for each in output if each["type"] == "message"]
    tokens = ["".join(token["token"] for token in each["logprobs"]) for each in messages]
    assert tokens == ["Let me look.", "Done.<|im_end|>"]
