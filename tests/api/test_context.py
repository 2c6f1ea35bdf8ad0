"""Chats past the window over HTTP: every dialect's receipt says what was left out, and a preview says it before."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from service.text.messages import Message
from tests.api.conftest import Serve
from tests.api.reading import error
from tests.api.test_generate import ask
from tests.api.test_sessions import SESSIONS, made, messages, say
from tests.fake_service import WINDOW, World, says

TALK = [
    {"role": "system", "content": "You sell lunch."},
    *({"role": role, "content": f"hello {at}, hello world " * 2} for at in range(40) for role in ("user", "assistant")),
    {"role": "user", "content": "how much?"},
]
WINDOWED: dict[str, Any] = {"messages": TALK, "context": {"policy": "window"}, "parameters": {"max_new_tokens": 16}}


def recounted(world: World, receipt: dict[str, Any]) -> int:
    sent = [TALK[int(name.removeprefix("m_"))] for name in receipt["kept"]]
    return len(world.tokenizer.render_chat([Message(each["role"], each["content"]) for each in sent]))


@pytest.mark.parametrize("policy", ["window", "middle"])
async def test_the_receipt_is_a_recount_and_the_preview_says_the_same(world: World, policy: str) -> None:
    body = WINDOWED | {"context": {"policy": policy, "pin": ["m_3"]}}
    preview = await ask(world, path="/v1/context/preview", **body)
    answer = await ask(world, **body)
    receipt = answer["context"]
    assert preview["would_refuse"] is False and preview["digest"] == answer["digest"]
    assert preview["context"] | {"cached_tokens": receipt["cached_tokens"]} == receipt
    assert receipt["policy"] == policy and receipt["truncated"] and receipt["window"] == WINDOW
    assert receipt["used"] == sum(receipt["parts"].values()) == answer["usage"]["prompt_tokens"] <= WINDOW - 16
    assert receipt["used"] == recounted(world, receipt)
    assert set(receipt["kept"]) | set(receipt["dropped"]) == {f"m_{at}" for at in range(len(TALK))}
    assert {"m_0", "m_3", "m_4", f"m_{len(TALK) - 1}"} <= set(receipt["kept"])
    assert ("m_1" in receipt["kept"]) == (policy == "middle")
    assert receipt["cut"]["at"] in receipt["kept"]
    assert receipt["cut"]["stable_for_tokens"] == WINDOW - 16 - receipt["used"]
    whole = world.tokenizer.render_chat([Message(each["role"], each["content"]) for each in TALK])
    assert (
        answer["usage"]["prompt_tokens_before_truncation"] == len(whole) > receipt["used"] + receipt["dropped_tokens"]
    )


async def test_refusing_stays_the_default_and_the_preview_tells_it(world: World) -> None:
    body = {key: value for key, value in WINDOWED.items() if key != "context"}
    refused = error(await world.client.post("/generate", json=body), 422, "context_overflow")
    preview = await ask(world, path="/v1/context/preview", **body)
    assert preview["would_refuse"] is True and preview["context"] is None and preview["code"] == "context_overflow"
    assert preview["needed_tokens"] == refused["needed_tokens"] > preview["window"] == WINDOW


async def test_the_preview_refuses_more_sequences_than_the_server_runs(serve: Serve) -> None:
    async with serve(max_in_progress=2) as world:
        for path in ("/generate", "/v1/context/preview"):
            response = await world.client.post(path, json={"inputs": "hi", "parameters": {"best_of": 3}})
            assert "at most 2" in error(response, 422, "invalid_request")["error"]


async def test_the_preview_refuses_what_the_answer_would(world: World) -> None:
    for parameters in ({"n": 2}, {"best_of": 2}, {"return_full_text": True}, {"decoder_input_details": True}):
        body = {"inputs": "hi", "stream": True, "parameters": parameters}
        refused = [await world.client.post(path, json=body) for path in ("/generate", "/v1/context/preview")]
        sentences = {error(each, 422, "unsupported_field")["error"] for each in refused}
        assert len(sentences) == 1, sentences
    whole = await ask(world, path="/v1/context/preview", inputs="hi", parameters={"n": 2})
    assert whole["would_refuse"] is False
    inspected = await ask(world, path="/v1/context/preview", text_input="hi", context={"inspect": True})
    assert inspected["context"]["rendered"], "which an answer in Triton's shape has no place for"


async def test_the_preview_notes_its_caller_and_the_sessions_revision(world: World) -> None:
    with capture_logs() as lines:
        body = {"inputs": "hi", "request_id": "mine-1", "user": "minji"}
        assert (await world.client.post("/v1/context/preview", json=body)).headers["x-request-id"] == "mine-1"
    assert [each["user"] for each in lines if each["event"] == "request"] == ["minji"]
    session = await made(world)
    for large in ({}, {"parameters": {"max_new_tokens": WINDOW}}):
        turn = {"session_id": session, "messages": TALK[-1:], **large}
        told = (await world.client.post("/v1/context/preview", json=turn)).headers["etag"]
        assert told == (await world.client.get(f"{SESSIONS}/{session}")).headers["etag"]
    turn = {"session_id": session, "messages": TALK[-1:]}
    answered = await world.client.post("/generate", json=turn, headers={"If-Match": told})
    again = await world.client.post("/v1/context/preview", json=turn)
    assert again.headers["etag"] == answered.headers["etag"] != told


READ = {
    "refuse": (),
    "window": ("low_water", "pin"),
    "middle": ("low_water", "pin"),
    "summarise": ("low_water", "pin", "summary_budget"),
    "retrieve": ("low_water", "pin", "recall_budget"),
}
SET: dict[str, Any] = {"low_water": 0.5, "pin": ["m_0"], "recall_budget": 9, "summary_budget": 9}


@pytest.mark.parametrize("policy", READ)
async def test_what_the_requests_own_policy_does_not_read_is_refused_by_name(world: World, policy: str) -> None:
    for name, value in SET.items():
        body: dict[str, Any] = {"messages": TALK[-1:], "context": {"policy": policy, name: value}}
        if name in READ[policy]:
            await ask(world, **body)
            continue
        refused = error(await world.client.post("/generate", json=body), 422, "unsupported_field")["error"]
        assert f"`context.{name}` cannot act with policy {policy}" in refused
        asked = {**body, "model": "demo", "max_tokens": 5}
        for path in ("/v1/chat/completions", "/v1/messages"):
            told = (await world.client.post(path, json=asked)).json()["error"]
            assert told["param"] == f"context.{name}"


async def test_what_a_default_policy_does_not_read_is_noted(serve: Serve) -> None:
    for policy, unread in (("refuse", ["low_water", "recall_budget"]), ("window", ["recall_budget"])):
        async with serve(context_policy=policy) as world:
            body: dict[str, Any] = {"messages": TALK[-1:], "context": {"low_water": 0.5, "pin": ["m_0"]}}
            body["context"]["recall_budget"] = 9
            notes = [f"policy {policy} does not read context.{name}" for name in unread]
            assert (await ask(world, **body))["context"]["notes"] == notes
            session = await made(world, policy="summarise")
            receipt = (await say(world, session, context={"recall_budget": 9}))["context"]
            assert receipt["notes"] == ["policy summarise does not read context.recall_budget"]


async def test_other_dialects_trim_and_say_so(world: World) -> None:
    body = {"model": "demo", "messages": TALK, "max_tokens": 16, "context": {"policy": "window"}}
    response = await world.client.post("/v1/chat/completions", json=body)
    receipt = response.json()["context"]
    assert receipt["truncated"] and response.headers["x-context-truncated"] == "true"
    assert int(response.headers["x-context-dropped-tokens"]) == receipt["dropped_tokens"] > 0
    metrics = (await world.client.get("/metrics")).text
    assert f'dosirak_context_dropped_tokens_total{{model="demo",version="1"}} {receipt["dropped_tokens"]}.0' in metrics
    assert 'dosirak_context_truncated_requests_total{model="demo",version="1"} 1.0' in metrics


async def test_a_turn_more_begins_as_the_chat_before(world: World) -> None:
    """The client sends the whole chat each time; the engine is sent the same beginning until the next cut."""
    talk: list[dict[str, str]] = []
    sent: list[tuple[int, ...]] = []
    cuts: list[str] = []
    for at in range(60):
        talk += [{"role": "user", "content": f"hello {at}, hello world"}]
        answer = await ask(world, messages=talk, context={"policy": "window"}, parameters={"max_new_tokens": 16})
        talk += [{"role": "assistant", "content": "hello"}]
        cuts.append((answer["context"]["cut"] or {"at": "m_0"})["at"])
        sent.append(world.engine.requests[-1].token_ids)
    moves = sum(a != b for a, b in pairwise(cuts))
    assert 1 < moves < 10
    for (before, after), (cut, next_cut) in zip(pairwise(sent), pairwise(cuts), strict=True):
        same = next((at for at, pair in enumerate(zip(before, after, strict=False)) if len(set(pair)) > 1), len(before))
        assert cut != next_cut or same >= len(before) - 4, "but for the prompt to answer"


async def test_what_cannot_be_done_is_refused_by_name(world: World) -> None:
    for context, code, named in (
        ({"policy": "window", "pin": ["m_99"]}, "invalid_request", "m_99"),
        ({"policy": "window", "max_input_tokens": 9}, "context_overflow", "max_input_tokens"),
        ({"policy": "window", "pin": [f"m_{at}" for at in range(81)]}, "context_overflow", "shorten"),
    ):
        body = error(await world.client.post("/generate", json=WINDOWED | {"context": context}), 422, code)
        assert named in body["error"]


async def test_a_budget_of_the_request_is_refused_with_its_own_number(world: World) -> None:
    context = {"max_input_tokens": 9}
    asked: dict[str, Any] = {"messages": TALK[1:], "context": context}
    body = error(await world.client.post("/generate", json=asked), 422, "context_overflow")
    used = body["prompt_tokens"]
    assert f"The prompt has {used} tokens, and context.max_input_tokens lets 9 in" in body["error"]
    assert (body["max_input_tokens"], body["window"]) == (9, WINDOW)
    asked["max_tokens"] = 5
    told = (await world.client.post("/v1/chat/completions", json=asked)).json()["error"]["message"]
    assert told.startswith("This model's maximum context length is 9 tokens.") and str(WINDOW) not in told
    told = (await world.client.post("/v1/messages", json={**asked, "model": "demo"})).json()["error"]["message"]
    assert told.startswith(f"prompt is too long: {used} tokens > 9 maximum.") and str(WINDOW) not in told


async def test_policies_act_on_turns(world: World) -> None:
    body = {"inputs": "hello", "context": {"policy": "window"}}
    assert "messages" in error(await world.client.post("/generate", json=body), 422, "unsupported_field")["error"]


async def test_documents_past_their_budget_are_not_told_as_a_prompt_that_is_too_long(world: World) -> None:
    """A client that knows those words would cut its chat, and get the same error again."""
    asked: dict[str, Any] = {"messages": TALK[-1:], "documents": [{"text": "hello " * 90}]}
    asked |= {"context": {"documents_budget": 9}}
    body = error(await world.client.post("/generate", json=asked), 422, "context_overflow")
    assert body["documents_tokens"] > body["documents_budget"] == 9
    for path in ("/v1/chat/completions", "/v1/messages"):
        told = (await world.client.post(path, json={**asked, "model": "demo", "max_tokens": 5})).json()["error"]
        assert told["code"] == "context_length_exceeded" and told["message"] == body["error"]


@pytest.mark.parametrize("answer_window", [None, 400])
async def test_the_count_of_a_prompt_past_the_window_is_exact(
    world: World, monkeypatch: pytest.MonkeyPatch, answer_window: int | None
) -> None:
    """Whatever is reserved, and where an encoder reads the prompt."""
    monkeypatch.setattr("service.deployments.deployment.Deployment.answer_window", answer_window)
    text = "hello " * WINDOW
    tokens = await ask(world, path="/tokenize", messages=[{"role": "user", "content": text}])
    for context in ({}, {"reserve_output_tokens": 0}, {"reserve_output_tokens": 9}, {"max_input_tokens": 9}):
        counted = await ask(world, path="/v1/responses/input_tokens", input=text, context=context)
        assert counted["input_tokens"] == tokens["count"], context


@pytest.mark.parametrize("policy", ["window", "middle", "retrieve"])
async def test_one_turn_with_a_small_budget_trims_that_turn_alone(world: World, policy: str) -> None:
    says(world, "hello world")
    session = await made(world, system="You sell lunch.", policy=policy)
    for turn in range(6):
        await say(world, session, f"hello {turn}, hello world")
    small = await say(world, session, context={"max_input_tokens": 140})
    assert small["context"]["counts"]["dropped"] > 0
    again = (await world.client.post(f"{SESSIONS}/{session}/regenerate", json={"context": {}})).json()
    assert again["context"]["counts"] == {"kept": 14, "dropped": 0, "summarised": 0}
    await world.client.post(f"{SESSIONS}/{session}/regenerate", json={"context": {"max_input_tokens": 140}})
    large = await say(world, session)
    assert large["context"]["counts"] == {"kept": 16, "dropped": 0, "summarised": 0} and large["context"]["cut"] is None


async def test_the_window_cuts_no_answer_of_open_length_off(world: World) -> None:
    """A policy that leaves turns out keeps an eighth of the window free for such an answer."""
    says(world, "hello world " * 4)
    session, least = await made(world), WINDOW
    for turn in range(24):
        said = {"role": "user", "content": f"hello {turn}, hello world"}
        body = {"model": "demo", "session_id": session, "messages": [said]}
        answer = (await world.client.post("/v1/chat/completions", json=body)).json()
        receipt = answer["context"]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert receipt["used"] + receipt["reserved_output"] == WINDOW and receipt["free"] == 0
        least = min(least, receipt["reserved_output"])
    assert receipt["counts"]["dropped"] and WINDOW // 8 <= least < WINDOW // 2


async def test_what_must_be_sent_may_use_the_room_for_an_answer_of_open_length(world: World) -> None:
    says(world, "hello")
    for policy in ("refuse", "window", "middle"):
        said = [{"role": "user", "content": "hello " * 230}]
        body = {"model": "demo", "messages": said, "context": {"policy": policy}}
        receipt = (await world.client.post("/v1/chat/completions", json=body)).json()["context"]
        assert receipt["truncated"] == (policy == "middle")
        assert (receipt["used"] > WINDOW * 7 // 8) == (policy != "middle"), "middle shortens the message"


@pytest.mark.parametrize(("policy", "pins"), [("middle", False), ("window", True), ("window", False)])
async def test_a_system_message_between_turns_of_a_session_is_the_next_turns(
    world: World, policy: str, pins: bool
) -> None:
    """The receipt counts each message once, the whole is a recount, and the cut stays."""
    says(world, "hello")
    talk = [("user", "hello 0 " * 4), ("assistant", "hello world"), ("system", "note 1")]
    for turn in range(1, 14):
        talk += [("user", f"hello {turn} hello world"), ("assistant", "hello world " * 2)]
    moment = {"created_at": "2026-01-01T00:00:00Z"}
    lines = [{"type": "session", "format": 2, "policy": policy}]
    lines += [
        {"type": "message", "id": f"m{at}", "role": role, "content": text, **moment}
        for at, (role, text) in enumerate(talk)
    ]
    body, headers = "\n".join(map(json.dumps, lines)), {"content-type": "application/x-ndjson"}
    session = (await world.client.post(f"{SESSIONS}/import", content=body, headers=headers)).json()["id"]
    said, cuts = [Message(*each) for each in talk], list[str]()
    for turn in range(3):
        if pins and turn == 1:
            pinned = (await messages(world, session))[2]["id"]
            await world.client.patch(f"{SESSIONS}/{session}/messages/{pinned}", json={"pinned": True})
        said.append(Message("user", f"again {turn}"))
        answer = await say(world, session, said[-1].content)
        receipt = answer["context"]
        assert sum(receipt["counts"].values()) == len(receipt["kept"]) + len(receipt["dropped"]) == len(said)
        assert answer["usage"]["prompt_tokens_before_truncation"] == len(world.tokenizer.render_chat(said))
        names = [each["id"] for each in await messages(world, session)][:-1]
        sent = [each for name, each in zip(names, said, strict=True) if name in receipt["kept"]]
        assert receipt["used"] == len(world.tokenizer.render_chat(sent))
        texts = [each.content for name, each in zip(names, said, strict=True) if name in receipt["dropped"]]
        assert receipt["dropped_tokens"] == sum(map(world.tokenizer.text_tokens, texts))
        cuts.append(receipt["cut"]["at"])
        said.append(Message("assistant", answer["generated_text"]))
    assert len(set(cuts)) == 1


async def test_a_refusal_names_what_can_be_changed(world: World) -> None:
    says(world, "hello world " * 10)
    session = await made(world, system="hello " * 40)
    await say(world, session, "hello " * 60)
    large = {"parameters": {"max_new_tokens": 400}}
    told = await say(world, session, "hello " * 30, status=422, **large)
    assert "shorten the input by" in told["error"], "the system prompt alone fits"
    first = (await messages(world, session))[0]["id"]
    await world.client.patch(f"{SESSIONS}/{session}/messages/{first}", json={"pinned": True})
    told = await say(world, session, "hi", status=422, **large)
    over = told["prompt_tokens"] + 400 - WINDOW
    assert f": unpin messages, or shorten the system prompt by {over} tokens or lower max_new_tokens" in told["error"]
