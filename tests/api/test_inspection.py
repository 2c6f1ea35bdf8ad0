"""`context.inspect` over HTTP: in every dialect's answer, never in the store, and only where it is asked for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from service.context import prompt as prompts
from service.text.tokenizer import Tokenizer
from tests.api.reading import error, events
from tests.api.test_context import TALK
from tests.api.test_generate import CHAT, ask
from tests.api.test_sessions import SESSIONS, SHORT, made, messages, say, world
from tests.fake_service import World

__all__ = ["world"]

INSPECT = {"policy": "window", "inspect": True}
FIELDS = {"messages", "rendered", "unlisted"}


def check(world: World, receipt: dict[str, Any], *, is_sent: bool = True) -> None:
    """The receipt's own numbers, and what the engine got."""
    tokens = [each["tokens"] for each in receipt["messages"] if each["state"] in ("kept", "recalled")]
    assert sum(tokens) + receipt["parts"]["template"] == receipt["used"] == len(receipt["rendered"])
    assert all(each.keys() == {"id", "role", "tokens", "state", "why"} for each in receipt["messages"])
    assert all(each.keys() == {"id", "text", "message"} for each in receipt["rendered"])
    ids = [token["id"] for token in receipt["rendered"]]
    text = "".join(token["text"] for token in receipt["rendered"])
    assert text == world.tokenizer.decode(ids, skip_special_tokens=False)
    if is_sent:
        assert ids == list(world.engine.requests[-1].token_ids)
    for state in ("dropped", "summarised"):
        assert [each["id"] for each in receipt["messages"] if each["state"] == state] == receipt[state]


async def test_an_answer_and_its_preview_are_inspected(world: World) -> None:
    body: dict[str, Any] = {"messages": TALK, "context": INSPECT, "parameters": SHORT}
    answer = await ask(world, **body)
    receipt = answer["context"]
    check(world, receipt)
    assert [(each["id"], each["role"]) for each in receipt["messages"]] == [
        (f"m_{at}", message["role"]) for at, message in enumerate(TALK)
    ]
    current = "".join(token["text"] for token in receipt["rendered"] if token["message"] == len(TALK) - 1)
    assert current == TALK[-1]["content"] and receipt["messages"][-1]["tokens"] == receipt["parts"]["current"]
    preview = await ask(world, path="/v1/context/preview", **body)
    assert preview["context"] | {"cached_tokens": receipt["cached_tokens"]} == receipt
    plain = await ask(world, **body | {"context": {"policy": "window"}})
    assert {key: value for key, value in receipt.items() if key not in FIELDS} == plain["context"]


async def test_streams_and_openai_have_it_where_they_have_the_receipt(world: World) -> None:
    body: dict[str, Any] = {"messages": CHAT, "context": {"inspect": True}}
    *first, last = events(await world.client.post("/generate_stream", json=body | {"parameters": SHORT}))
    check(world, last["context"])
    assert not any("context" in each for each in first)
    chat = {**body, "model": "demo", "max_tokens": 4}
    check(world, (await world.client.post("/v1/chat/completions", json=chat)).json()["context"])
    chunks = events(await world.client.post("/v1/chat/completions", json={**chat, "stream": True}))
    check(world, next(each["context"] for each in chunks if "context" in each))
    text = {"model": "demo", "prompt": "hello", "max_tokens": 4, "context": {"inspect": True}}
    receipt = (await world.client.post("/v1/completions", json=text)).json()["context"]
    check(world, receipt)
    assert [(each["id"], each["role"]) for each in receipt["messages"]] == [(None, "prompt")]


async def test_a_session_s_inspection_reads_all_of_it_and_is_not_stored(world: World) -> None:
    session = await made(world, system="You sell lunch.")
    for turn in range(16):
        await say(world, session, f"hello {turn}, hello world")
    body: dict[str, Any] = {"session_id": session, "messages": [{"role": "user", "content": "?"}], "parameters": SHORT}
    plain = (await ask(world, path="/v1/context/preview", **body))["context"]
    shown = (await ask(world, path="/v1/context/preview", **body, context={"inspect": True}))["context"]
    check(world, shown, is_sent=False)
    assert {key: shown[key] for key in shown.keys() - FIELDS - {"kept"}} == {
        key: plain[key] for key in plain if key != "kept"
    }
    stored = await messages(world, session)
    assert [each["id"] for each in shown["messages"]][:-1] == ["system", *(each["id"] for each in stored)]
    assert [each["role"] for each in shown["messages"]] == ["system", *(each["role"] for each in stored), "user"]
    gone = [each for each in shown["messages"] if each["state"] == "dropped"]
    assert gone and sum(each["tokens"] for each in gone) == shown["dropped_tokens"]
    answer = await say(world, session, "?", context={"inspect": True})
    check(world, answer["context"])
    again = await world.client.post(f"{SESSIONS}/{session}/regenerate", json={"context": INSPECT, "parameters": SHORT})
    check(world, again.json()["context"])
    for each in await messages(world, session):
        assert each["role"] == "user" or not FIELDS & each["context"].keys()


async def test_it_is_work_for_a_thread_and_none_where_nobody_asks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    texts = Tokenizer.token_texts

    def watched(self: Tokenizer, ids: Any) -> list[str]:
        threads.append(threading.current_thread())
        return texts(self, ids)

    monkeypatch.setattr(Tokenizer, "token_texts", watched)
    await ask(world, messages=CHAT, context={"inspect": True}, parameters={"n": 2, "do_sample": True})
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
    for name in ("inspect_chat", "inspect_raw"):
        monkeypatch.delattr(prompts, name)
    for source in ({"messages": CHAT}, {"inputs": "hello"}, {"input_ids": [5, 6]}):
        for context in ({}, {"inspect": False}, {"inspect": None}):
            answer = await ask(world, **source, context=context, parameters=SHORT)
            assert not FIELDS & answer["context"].keys()


async def test_triton_s_answer_has_no_receipt_to_add_to(world: World) -> None:
    body: dict[str, Any] = {"text_input": "hello", "context": {"inspect": True}}
    for path in ("/generate", "/generate_stream"):
        refused = error(await world.client.post(path, json=body), 422, "unsupported_field")
        assert "context.inspect" in refused["error"] and "inputs" in refused["error"]
    preview = await ask(world, path="/v1/context/preview", **body)
    check(world, preview["context"], is_sent=False)


async def test_a_refusal_is_told_as_before(world: World) -> None:
    body: dict[str, Any] = {"messages": TALK, "context": {"inspect": True, "policy": "refuse"}}
    preview = await ask(world, path="/v1/context/preview", **body)
    assert preview["would_refuse"] is True and preview["context"] is None
