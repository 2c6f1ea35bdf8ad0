"""Random chats under every policy: what must stay stays, the parts are a recount, what is left out is named."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.context import trimming
from service.context.budget import ContextOptions
from service.context.prompt import Chat, Prompt, build_prompt
from service.context.sources import Past
from service.errors import ContextOverflow
from service.text.messages import Document, Message, ToolCall
from service.text.tokenizer import Tokenizer
from tests.effort import drawn
from tests.tokenizers import byte_level, llama, load
from tests.tools import TEMPLATES

HALF = ContextOptions("window", low_water=0.5)
TEXTS = st.text(alphabet="ab 가😀\n<|im_end|>", max_size=40)


@pytest.fixture(scope="module", params=[byte_level, llama], ids=["byte level", "llama"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(tmp_path_factory.mktemp("tokenizer"), request.param())


@pytest.fixture(scope="module", params=[byte_level, llama], ids=["byte level", "llama"])
def calling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Its template places tool calls."""
    return load(tmp_path_factory.mktemp("tokenizer"), request.param(), chat_template=TEMPLATES["json"])


@st.composite
def chats(draw: st.DrawFn) -> tuple[Message, ...]:
    system = draw(st.lists(st.builds(Message, st.just("system"), TEXTS), max_size=1))
    exchanges = draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=12))
    history = [
        Message(role, text) for pair in exchanges for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return (*system, *history, Message("user", draw(TEXTS)))


DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "chat": chats(),
    "window": st.integers(20, 400),
    "reserve": st.integers(0, 60),
    "policy": st.sampled_from(["window", "middle", "summarise", "retrieve"]),
    "low_water": st.sampled_from([None, 0.1, 0.9]),
    "pins": st.sets(st.integers(0, 24), max_size=3),
    "documents": st.lists(TEXTS, max_size=2),
    "passages": st.lists(TEXTS, max_size=2),
    "summaries": st.lists(st.tuples(st.integers(0, 25), TEXTS), max_size=3),
}
SETTINGS = settings(
    max_examples=drawn(120, 600),
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
UNSHRUNK = settings(SETTINGS, phases=[Phase.generate], database=None, print_blob=False)


@SETTINGS
@given(**DRAWN)
def test_policies(tokenizer: Tokenizer, **drawn: Any) -> None:
    _check(tokenizer, **drawn)


def _check(
    tokenizer: Tokenizer,
    chat: tuple[Message, ...],
    window: int,
    reserve: int,
    policy: Any,
    low_water: float | None,
    pins: set[int],
    documents: list[str],
    passages: list[str],
    summaries: list[tuple[int, str]],
) -> None:
    pinned = {at for at in pins if at < len(chat)}
    options = ContextOptions(policy, low_water=low_water, pin=tuple(f"m_{at}" for at in pinned))
    given_documents = tuple(Document(text) for text in documents)
    past = Past(
        summaries=tuple(summaries),
        passages=tuple(Document(text, id="k_1") for text in passages),
    )
    try:
        prompt = build_prompt(
            tokenizer, window, Chat(chat, past=past), documents=given_documents, max_new_tokens=reserve, context=options
        )
    except ContextOverflow as error:
        assert error.numbers["needed_tokens"] > window, "refused though it fits"
        return
    check(tokenizer, chat, prompt, pinned, policy)
    receipt = prompt.receipt
    assert receipt.used + reserve <= window
    assert receipt.parts.documents <= max(0, window - reserve) // 4
    of_knowledge = sum(name == "k_1" for name in receipt.documents_kept)
    assert len(receipt.documents_kept) - of_knowledge + len(receipt.documents_dropped) == len(documents)
    assert of_knowledge <= len(passages)
    assert (receipt.parts.summary > 0) == bool(receipt.summarised)
    if not receipt.truncated or not of_knowledge:
        whole = tokenizer.encode_chat(chat, documents=given_documents).count
        assert prompt.tokens_before_truncation == (whole if receipt.truncated else receipt.used)


def check(tokenizer: Tokenizer, chat: tuple[Message, ...], prompt: Prompt, pinned: set[int], policy: str) -> None:
    receipt = prompt.receipt
    names = [f"m_{at}" for at in range(len(chat))]
    assert sorted((*receipt.kept, *receipt.dropped, *receipt.summarised), key=names.index) == names
    assert set(receipt.recalled) <= set(receipt.kept) and (policy == "retrieve" or not receipt.recalled)
    sent = [at for at, name in enumerate(names) if name in receipt.kept]
    must = {at for at, message in enumerate(chat) if message.role == "system"} | pinned | {len(chat) - 1}
    assert must <= set(sent)
    turns = [message.role for message in (chat[at] for at in sent) if message.role != "system"]
    assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"], "whole turns, so that roles alternate"
    assert receipt.parts.total == receipt.used == len(prompt.token_ids)
    assert (receipt.cut is None) == (len(sent) == len(chat))
    if receipt.cut is None:
        return
    newest = int(receipt.cut.at.removeprefix("m_"))
    assert all(int(name.removeprefix("m_")) < newest for name in (*receipt.recalled, *receipt.summarised))
    assert set(range(newest, len(chat))) <= set(sent)
    assert receipt.cut.stable_for_tokens >= 0
    if policy == "middle":
        first = sum(message.role == "system" for message in chat)
        assert {first, first + 1} <= set(sent)


@st.composite
def chats_with_calls(draw: st.DrawFn) -> tuple[Message, ...]:
    """Turns in which tools are called up to twice; the last message is a user's or a tool's."""
    arguments = st.dictionaries(TEXTS, TEXTS | st.integers(-9, 9) | st.lists(TEXTS, max_size=2), max_size=2)
    chat: list[Message] = []
    last = draw(st.integers(1, 7))
    for turn in range(last):
        chat.append(Message("user", draw(TEXTS)))
        for exchange in range(draw(st.integers(0, 2))):
            ids = [f"call_{turn}_{exchange}_{at}" for at in range(draw(st.integers(1, 2)))]
            calls = tuple(ToolCall(id, "f", json.dumps(draw(arguments))) for id in ids)
            chat.append(Message("assistant", draw(TEXTS), tool_calls=calls))
            chat += [Message("tool", draw(TEXTS), tool_call_id=id) for id in ids]
        if turn < last - 1:
            chat.append(Message("assistant", draw(TEXTS)))
    return tuple(chat)


@settings(max_examples=drawn(30, 80), deadline=None, report_multiple_bugs=False)
@given(chats_with_calls(), st.integers(60, 900), st.sampled_from(["window", "middle"]))
def test_calls_and_results_stay_together(
    calling: Tokenizer, chat: tuple[Message, ...], window: int, policy: Any
) -> None:
    try:
        prompt = build_prompt(calling, window, Chat(chat), max_new_tokens=8, context=ContextOptions(policy))
    except ContextOverflow as error:
        assert error.numbers["needed_tokens"] > window
        return
    receipt = prompt.receipt
    sent = [chat[int(name.removeprefix("m_"))] for name in receipt.kept]
    assert len(receipt.kept) + len(receipt.dropped) == len(chat) and sent[-1] == chat[-1]
    assert [message.tool_call_id for message in sent if message.role == "tool"] == [
        call.id for message in sent for call in message.tool_calls
    ]
    assert list(prompt.token_ids) == calling.render_chat(sent)
    assert receipt.parts.total == receipt.used == len(prompt.token_ids) <= window - 8
    shares = calling.encode_chat(sent).shares.messages
    assert receipt.parts.current == shares[-1] or not sent[-1].content.strip()
    assert receipt.parts.history == sum(share or 0 for share in shares[:-1])


def talk_with_tools(rng: random.Random, turns: int) -> tuple[list[Message], list[int]]:
    """A chat whose turns call tools up to twice, and how many messages it had at each call for an answer."""

    def text(most: int) -> str:
        return " ".join(rng.choice(("ab", "가", "\n", "<|im_end|>", "a 가 b")) for _ in range(rng.randint(0, most)))

    chat, calls = [Message("system", "You sell lunch.")], list[int]()
    for turn in range(turns):
        chat.append(Message("user", text(16)))
        for step in range(rng.choice((0, 0, 1, 2))):
            calls.append(len(chat))
            asked = tuple(ToolCall(f"c{turn}_{step}_{at}", "f", json.dumps({"a": text(3)})) for at in range(step + 1))
            results = (Message("tool", text(5), tool_call_id=call.id) for call in asked)
            chat += [Message("assistant", text(2), tool_calls=asked), *results]
        calls.append(len(chat))
        chat.append(Message("assistant", text(16)))
    return chat, calls


def stored(chat: list[Message], past: Past, policy: str) -> Chat:
    """The chat as a session gives it: what stays, and the messages from the cut on."""
    at = int(past.cut.removeprefix("m_") or 0)
    users = [place for place, message in enumerate(chat) if message.role == "user"]
    stays = users[1] if policy == "middle" and len(users) > 1 else 1
    places = [place for place in range(len(chat)) if past.before is None or place < stays or place >= at]
    names = tuple(f"m_{place}" for place in places)
    return Chat(tuple(chat[place] for place in places), names, past, tuple(places))


@settings(SETTINGS, max_examples=drawn(6, 30))
@given(st.randoms(use_true_random=False), st.integers(450, 800), st.sampled_from(["window", "middle"]))
def test_a_session_has_the_cut_of_a_client_that_sends_the_whole_chat(
    calling: Tokenizer, rng: random.Random, window: int, policy: Any
) -> None:
    """With tools, call by call: the cut moves only where what is sent would not fit, and then down to the mark."""
    (chat, calls), past, at = talk_with_tools(rng, 14), Past(), 0
    options, limit = ContextOptions(policy, low_water=0.5), window - 16
    for now in calls:
        said = chat[:now]
        try:
            whole = build_prompt(calling, window, Chat(tuple(said)), max_new_tokens=16, context=options)
        except ContextOverflow:
            return
        session = build_prompt(calling, window, stored(said, past, policy), max_new_tokens=16, context=options)
        assert session.token_ids == whole.token_ids and session.receipt.cut == whole.receipt.cut
        assert session.receipt.counts == whole.receipt.counts
        assert session.tokens_before_truncation == whole.tokens_before_truncation == calling.chat_tokens(said)
        for receipt in (whole.receipt, session.receipt):
            assert receipt.parts.total == receipt.used == len(whole.token_ids) <= limit
        if whole.receipt.cut is None:
            assert past.cut == ""
            continue
        assert whole.tokens_before_truncation > limit, "a whole chat that fits is sent"
        after = int(whole.receipt.cut.at.removeprefix("m_"))
        assert after >= at, "a cut never goes back"
        if after > at:
            assert sent_tokens(calling, said, at, policy) > limit, "what was sent still fits"
            last = max(place for place in range(now) if chat[place].role == "user")
            assert after == last or whole.receipt.used <= limit / 2 + beside(calling, said, policy)
        at, past = after, Past(whole.receipt.cut.at, session.before_cut, limit=session.cut_limit)


def sent_tokens(tokenizer: Tokenizer, chat: list[Message], cut: int, policy: str) -> int:
    """The tokens of a prompt with the cut at this message."""
    users = [place for place, message in enumerate(chat) if message.role == "user"]
    stays = users[1] if policy == "middle" and len(users) > 1 else 1
    return tokenizer.chat_tokens([*chat[: min(stays, max(cut, 1))], *chat[max(cut, 1) :]])


def beside(tokenizer: Tokenizer, chat: list[Message], policy: str) -> int:
    """The tokens that a prompt has beside the turns that may be left out."""
    return sent_tokens(tokenizer, [*chat, Message("user", "")], len(chat), policy)


def test_the_same_checks_find_a_lost_pin(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "_pinned", lambda pins, names: [False] * len(names))

    @settings(UNSHRUNK, max_examples=1000)  # the first that fails ends it
    @given(**DRAWN)
    def without_pins(**drawn: Any) -> None:
        _check(tokenizer, **drawn)

    with pytest.raises(AssertionError):
        without_pins()


def test_prefixes_are_stable_and_few_tokens_are_computed_again(tokenizer: Tokenizer) -> None:
    """A hundred turns through a small window: what is sent begins as the call before did, but at cuts."""
    chat: list[Message] = [Message("system", "You sell lunch.")]
    before: tuple[int, ...] = ()
    prefilled = new = cuts = 0
    for turn in range(100):
        chat.append(Message("user", f"{turn} ab 가나 " * 3))
        prompt = build_prompt(tokenizer, 600, Chat(tuple(chat)), max_new_tokens=40, context=HALF)
        same = next(
            (at for at, pair in enumerate(zip(before, prompt.token_ids, strict=False)) if len(set(pair)) > 1),
            len(before),
        )
        prefilled += len(prompt.token_ids) - min(same, len(prompt.token_ids))
        grown = tokenizer.message_tokens(chat[-1]) + (tokenizer.message_tokens(chat[-2]) if turn else 0)
        if same < len(before) * 0.9:
            cuts += 1
            new += len(prompt.token_ids)
        else:
            new += grown
        before = prompt.token_ids
        chat.append(Message("assistant", f"answer {turn}"))
    assert cuts < 20
    assert prefilled <= 1.3 * new


def test_where_the_message_behind_a_summary_is_gone_the_summary_is_left_out(tokenizer: Tokenizer) -> None:
    """No turn begins there any more: the search for it ended in StopIteration, which no thread can hand on."""
    roles, past = ("user", "assistant"), Past(summaries=((8, "They said hello."),))
    chat = tuple(Message(roles[at % 2], f"{roles[at % 2][0]}{at} {'word ' * 5}") for at in range(15))
    for messages, is_summarised in ((chat, True), (chat[:8] + chat[9:], False)):
        found = []
        for window in range(100, 600, 10):
            with suppress(ContextOverflow):
                context = ContextOptions("summarise")
                prompt = build_prompt(tokenizer, window, Chat(messages, past=past), max_new_tokens=16, context=context)
                found.append(bool(prompt.receipt.summarised))
        assert found and any(found) is is_summarised
