"""Old turns that come back, summaries made ahead, and the knowledge base, over HTTP: what the engine receives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from service.context.composition import SUMMARY_REQUEST, SUMMARY_TITLE
from service.context.prompt import NO_SUMMARY_NOTE
from service.engine.protocol.messages import Request
from service.text.tokenizer import Tokenizer
from tests.api.reading import error
from tests.api.test_generate import ask
from tests.fake_service import World, says, serving, spoken
from tests.tools import REASONING
from tests.waiting import until

WITHOUT_SWITCH = REASONING.replace("enable_thinking is defined and enable_thinking is false", "false")
FACT = {"role": "user", "content": "제 알레르기는 땅콩이에요."}
SMALL = [
    message
    for at in range(30)
    for message in (
        {"role": "user", "content": f"hello {at}, what is new today?"},
        {"role": "assistant", "content": "hello world, hello"},
    )
]
TALK = [FACT, {"role": "assistant", "content": "네."}, *SMALL, {"role": "user", "content": "땅콩 알레르기 기억하세요?"}]


def sent(world: World) -> str:
    """The text of the last prompt that the engine got."""
    return world.tokenizer.decode(world.engine.requests[-1].token_ids, skip_special_tokens=False)


async def test_an_old_turn_that_matches_comes_back_before_the_question(world: World) -> None:
    body: dict[str, Any] = {"messages": TALK, "parameters": {"max_new_tokens": 8}}
    with capture_logs() as lines:
        window = await ask(world, **body, context={"policy": "window"})
    lost = window["context"]
    assert lines[0].items() >= {"context_policy": "window", "dropped_tokens": lost["dropped_tokens"]}.items()
    assert lines[0]["messages_dropped"] == len(lost["dropped"]) > 0 == lines[0]["messages_recalled"]
    assert "땅콩이에요" not in sent(world) and "m_0" in window["context"]["dropped"]
    answer = await ask(world, **body, context={"policy": "retrieve", "recall_budget": 60})
    receipt, text = answer["context"], sent(world)
    assert receipt["recalled"][:2] == ["m_0", "m_1"] and {"m_0", "m_1"} <= set(receipt["kept"])
    order = [text.index(words) for words in ("hello 28", "땅콩이에요", "hello 29", "기억하세요")]
    assert order == sorted(order), "the prefix stays as it was, the last exchange beside the question"
    assert receipt["used"] == sum(receipt["parts"].values()) == answer["usage"]["prompt_tokens"]
    preview = await ask(world, path="/v1/context/preview", **body, context={"policy": "retrieve", "recall_budget": 60})
    assert preview["context"] | {"cached_tokens": receipt["cached_tokens"]} == receipt


def summarising(request: Request, tokenizer: Tokenizer) -> list[int]:
    if SUMMARY_REQUEST in tokenizer.decode(request.token_ids):
        return [*tokenizer.encode("땅콩 알레르기", add_special_tokens=False), tokenizer.stop_token_ids[0]]
    return spoken(request, tokenizer)


LITTLE: dict[str, Any] = {
    "context": {"policy": "summarise", "summary_budget": 120},
    "parameters": {"max_new_tokens": 20},
}


async def grow(world: World, call: Any) -> list[dict[str, Any]]:
    """A chat told turn by turn until two of its answers had a summary; all receipts."""
    receipts: list[dict[str, Any]] = []
    for at in range(40):
        receipts.append(await call(at))
        await world.app.state.service.answers.summaries.settle()
        if sum(bool(each["summarised"]) for each in receipts) == 2:
            return receipts
    raise AssertionError("no summary was ever sent")


async def test_a_summary_is_ready_when_it_is_needed(world: World) -> None:
    world.engine.script = summarising
    chat: list[dict[str, str]] = []

    async def call(at: int) -> dict[str, Any]:
        chat.append({"role": "user", "content": f"{FACT['content']} {at}"})
        body: dict[str, Any] = LITTLE | {"messages": chat}
        answer = await ask(world, **body)
        chat.append({"role": "assistant", "content": answer["generated_text"]})
        receipt: dict[str, Any] = answer["context"]
        assert receipt["used"] == sum(receipt["parts"].values()) == answer["usage"]["prompt_tokens"]
        return receipt

    receipts = await grow(world, call)
    assert not any(receipt["dropped"] or NO_SUMMARY_NOTE in receipt["notes"] for receipt in receipts)
    first, second = (receipt for receipt in receipts if receipt["summarised"])
    assert first["parts"]["summary"] > 0 and first["summarised"][0] == "m_0"
    assert second["summarised"] == first["summarised"], "the same one for the same cut"
    made = [r for r in world.engine.requests if SUMMARY_REQUEST in world.tokenizer.decode(r.token_ids)]
    assert 1 <= len(made) <= 3 and made[0].priority < 0
    prompt = world.tokenizer.decode(world.engine.requests[-1].token_ids)
    assert prompt.count(SUMMARY_TITLE) == 1 and "땅콩 알레르기" in prompt
    assert 'dosirak_summaries_total{outcome="made"} 1' in (await world.client.get("/metrics")).text


@pytest.mark.parametrize("has_switch", [True, False])
async def test_a_summary_is_made_without_reasoning_where_the_template_can(tmp_path: Path, has_switch: bool) -> None:
    """A model that reasons would use up the room that its summary has."""
    async with serving(tmp_path, chat_template=REASONING if has_switch else WITHOUT_SWITCH) as world:
        world.engine.script = summarising
        chat: list[dict[str, str]] = []

        async def call(at: int) -> dict[str, Any]:
            chat.append({"role": "user", "content": f"{FACT['content']} {at}"})
            body: dict[str, Any] = LITTLE | {"messages": chat}
            answer = await ask(world, **body)
            chat.append({"role": "assistant", "content": answer["generated_text"]})
            return dict(answer["context"])

        await grow(world, call)
        prompts = [world.tokenizer.decode(r.token_ids, skip_special_tokens=False) for r in world.engine.requests]
        made = [prompt for prompt in prompts if SUMMARY_REQUEST in prompt]
        closed = [prompt.endswith("<think>\n\n</think>\n\n") for prompt in made]
        assert made and all(closed) == any(closed) == has_switch
        assert not any(prompt.endswith("</think>\n\n") for prompt in prompts if prompt not in made)


async def test_no_summary_loads_a_version_that_was_unloaded_while_it_waited(world: World) -> None:
    world.engine.script = summarising
    summaries = world.app.state.service.answers.summaries
    async with summaries._turn:  # another chat's summary is being made
        await ask(world, messages=TALK, context={"policy": "summarise"}, parameters={"max_new_tokens": 8})
        assert summaries._tasks
        await world.deployments.unload("demo:1")
        await until(lambda: not world.deployments.all())
    await summaries.settle()
    assert not world.deployments.all()


async def test_a_failed_summary_falls_back_to_the_window_and_the_receipt_says_so(world: World) -> None:
    def silent(request: Request, tokenizer: Tokenizer) -> list[int]:
        is_summary = SUMMARY_REQUEST in tokenizer.decode(request.token_ids)
        return [tokenizer.stop_token_ids[0]] if is_summary else spoken(request, tokenizer)

    world.engine.script = silent
    answer = await ask(world, messages=TALK, context={"policy": "summarise"}, parameters={"max_new_tokens": 8})
    receipt = answer["context"]
    assert receipt["dropped"] and not receipt["summarised"] and NO_SUMMARY_NOTE in receipt["notes"]
    await world.app.state.service.answers.summaries.settle()
    answer = await ask(world, messages=TALK, context={"policy": "summarise"}, parameters={"max_new_tokens": 8})
    assert answer["context"]["notes"] == receipt["notes"]
    assert 'dosirak_summaries_total{outcome="failed"}' in (await world.client.get("/metrics")).text


async def test_a_long_chat_that_came_at_once_is_summarised_in_steps(world: World) -> None:
    world.engine.script = summarising
    body: dict[str, Any] = {"messages": TALK, "context": {"policy": "summarise"}, "parameters": {"max_new_tokens": 8}}
    assert (await ask(world, **body))["context"]["dropped"]
    await world.app.state.service.answers.summaries.settle()
    made = [r for r in world.engine.requests if SUMMARY_REQUEST in world.tokenizer.decode(r.token_ids)]
    assert len(made) > 1 and SUMMARY_TITLE in world.tokenizer.decode(made[-1].token_ids), "one rests on the other"
    receipt = (await ask(world, **body))["context"]
    assert receipt["summarised"][0] == "m_0" and not receipt["dropped"]


async def test_a_sessions_summary_is_stored_with_it(world: World) -> None:
    world.engine.script = summarising
    made = await world.client.post("/v1/sessions", json={"policy": "summarise", "system": "be brief"})
    session = made.json()["id"]

    async def call(at: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"{FACT['content']} {at}"}]
        answer = await ask(world, session_id=session, messages=messages, **LITTLE)
        receipt: dict[str, Any] = answer["context"]
        return receipt

    receipts = await grow(world, call)
    assert not any(receipt["dropped"] for receipt in receipts)
    conversations = world.app.state.service.answers.conversations
    stored = await (await conversations.store()).summaries.of("anonymous", session)
    assert set(stored.values()) == {"땅콩 알레르기"}
    assert sent(world).index("be brief") < sent(world).index(SUMMARY_TITLE) < sent(world).index("땅콩이에요")


async def test_the_knowledge_base_over_http(world: World) -> None:
    made = await world.client.post("/v1/knowledge", json={"title": "메뉴판", "text": "김치 도시락 8,000원"})
    assert made.status_code == 201 and made.json()["passages"] == 1
    id = made.json()["id"]
    assert (await world.client.get(f"/v1/knowledge/{id}")).json() == made.json()
    listed = (await world.client.get("/v1/knowledge")).json()
    assert [each["id"] for each in listed["data"]] == [id] and "text" not in listed["data"][0]
    question: dict[str, Any] = {"messages": [{"role": "user", "content": "김치 도시락 얼마예요?"}]}
    plain = await ask(world, **question)
    assert "8,000" not in sent(world) and "documents" not in plain["context"]
    for context in ({"knowledge": True}, {"policy": "retrieve"}, {"policy": "window", "knowledge": True}):
        answer = await ask(world, **question, context=context)
        receipt = answer["context"]
        assert "메뉴판\n김치 도시락 8,000원" in sent(world), context
        assert receipt["documents"] == {"kept": [id], "dropped": []} and receipt["parts"]["documents"] > 0
        assert receipt["used"] == sum(receipt["parts"].values()) == answer["usage"]["prompt_tokens"]
        assert receipt["kept"] == ["m_0"] and not receipt["truncated"]
    await ask(world, **question, context={"policy": "retrieve", "knowledge": False})
    assert "8,000" not in sent(world)
    await ask(world, messages=[{"role": "user", "content": "xyz"}], context={"knowledge": True})
    assert "8,000" not in sent(world), "nothing that does not match"
    assert (await world.client.delete(f"/v1/knowledge/{id}")).status_code == 204
    error(await world.client.get(f"/v1/knowledge/{id}"), 404, "not_found")
    error(await world.client.post("/v1/knowledge", json={"text": ""}), 422, "invalid_request")
    error(await world.client.post("/v1/knowledge", json={"text": "x", "session_id": "s_1"}), 404, "not_found")


async def test_a_sessions_own_documents_are_for_its_turns_alone(world: World) -> None:
    first, second = [(await world.client.post("/v1/sessions", json={})).json()["id"] for _ in range(2)]
    await world.client.post("/v1/knowledge", json={"text": "와이파이 암호는 bento", "session_id": first})
    question = [{"role": "user", "content": "와이파이 암호 뭐예요?"}]
    for session, found in ((first, True), (second, False)):
        await ask(world, session_id=session, messages=question, context={"policy": "retrieve"})
        assert ("bento" in sent(world)) is found


@pytest.mark.parametrize("budget", [0, 3])
async def test_passages_stay_within_the_documents_budget(world: World, budget: int) -> None:
    await world.client.post("/v1/knowledge", json={"text": "김치 도시락 8,000원"})
    question = [{"role": "user", "content": "김치 도시락 얼마예요?"}]
    answer = await ask(world, messages=question, context={"knowledge": True, "documents_budget": budget})
    assert answer["context"]["parts"]["documents"] == 0 and "documents" not in answer["context"]


async def test_the_middle_of_one_overlong_message_is_left_out_and_marked(world: World) -> None:
    text = "BEGIN " + "words and words " * 400 + " END"
    body: dict[str, Any] = {
        "messages": [*TALK[:4], {"role": "user", "content": text}],
        "parameters": {"max_new_tokens": 8},
    }
    for policy in ("window", "refuse"):
        refused = await world.client.post("/generate", json=body | {"context": {"policy": policy}})
        error(refused, 422, "context_overflow")
    answer = await ask(world, **body, context={"policy": "middle"})
    receipt, prompt = answer["context"], sent(world)
    assert "BEGIN" in prompt and " END" in prompt and "tokens left out …]" in prompt
    assert "땅콩이에요" in prompt, "the first exchange stays"
    assert receipt["kept"] == ["m_0", "m_1", "m_4"] and receipt["truncated"]
    assert "the middle of the last turn is left out" in receipt["notes"][0]
    assert receipt["dropped_tokens"] > 1000 and receipt["used"] == answer["usage"]["prompt_tokens"]


async def test_a_servers_own_policy_is_for_chats_that_name_none(tmp_path: Path) -> None:
    async with serving(tmp_path, context_policy="window") as world:
        body: dict[str, Any] = {"messages": TALK, "parameters": {"max_new_tokens": 8}}
        answer = await ask(world, **body)
        assert answer["context"]["policy"] == "window" and answer["context"]["dropped"]
        preview = await ask(world, path="/v1/context/preview", **body)
        assert preview["context"]["policy"] == "window"
        assert (await ask(world, **body, context={"low_water": 0.3}))["context"]["policy"] == "window"
        error(
            await world.client.post("/generate", json=body | {"context": {"policy": "refuse"}}), 422, "context_overflow"
        )
        assert (await ask(world, inputs="hello"))["context"]["policy"] == "refuse", "raw text has no turns"
        session = (await world.client.post("/v1/sessions", json={"policy": "middle"})).json()["id"]
        turn = await ask(world, session_id=session, messages=[FACT])
        assert turn["context"]["policy"] == "middle"


async def test_nothing_is_summarised_as_nothing(world: World) -> None:
    """Where two turns do not fit the request for a summary, and one does: with a system prompt, none was tried."""
    says(world, "Nothing yet")
    items = [
        {"type": "message", "role": role, "content": f"{role[0]}{at} {'x ' * size}"}
        for at in range(3)
        for role, size in (("user", 70), ("assistant", 30))
    ]
    conversation = (await world.client.post("/v1/conversations", json={"items": items})).json()["id"]
    body = {"conversation": conversation, "instructions": "Be kind.", "input": "hi", "max_output_tokens": 8}
    response = await world.client.post("/v1/responses", json={**body, "context": {"policy": "summarise"}})
    assert response.status_code == 200, response.text
    await until(lambda: len(world.engine.requests) > 1)
    decode = world.tokenizer.decode
    first = decode(list(world.engine.requests[1].token_ids), skip_special_tokens=False)
    assert "Summarise our conversation" in first and "u0 x" in first
