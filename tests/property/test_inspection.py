"""Random chats, inspected: every token and every message is told once, and the numbers are the receipt's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.context import counts, inspection
from service.context.budget import ContextOptions
from service.context.inspection import InspectedMessage
from service.context.prompt import Chat, Ids, Prompt, Text, build_prompt
from service.context.sources import Past
from service.errors import ContextOverflow
from service.text.chat import EncodedChat
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer
from tests.effort import drawn
from tests.property.test_trimming import SETTINGS, TEXTS, chats_with_calls
from tests.tokenizers import CHAT_TEMPLATE, byte_level, llama, load
from tests.tools import TEMPLATES

MERGING = """{{ bos_token }}
{%- for document in documents or [] %}
    {{- '[DOCUMENT] ' + (document.title or '') + ' ' + document.text + '\n' }}
{%- endfor %}
{%- set opening = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}
{%- set said = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in said %}
    {%- if not loop.first and said[loop.index0 - 1].role == message.role %}{{ '\n' }}
    {%- elif message.role == 'user' %}{{ '[INST] ' }}{% else %}{{ ' [/INST] ' }}{% endif %}
    {{- (opening if loop.first else '') + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ ' [/INST]' }}{% endif %}"""
"""The first system message is written into the first message, neighbours of one role into one block, and no control
token parts them; later system messages have no place."""
TEMPLATE_OF = {"blocks": CHAT_TEMPLATE, "merging": MERGING}
KINDS = [(rust, name) for rust in (byte_level, llama) for name in TEMPLATE_OF]


@pytest.fixture(scope="module", params=KINDS, ids=[f"{rust.__name__} {name}" for rust, name in KINDS])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    rust, template = request.param
    return load(tmp_path_factory.mktemp("tokenizer"), rust(), chat_template=TEMPLATE_OF[template])


@st.composite
def chats(draw: st.DrawFn) -> tuple[Message, ...]:
    system = draw(st.lists(st.builds(Message, st.just("system"), TEXTS), max_size=2))
    said = draw(st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), TEXTS), max_size=20))
    return (*system, *said, Message("user", draw(TEXTS)))


DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "chat": chats(),
    "window": st.integers(40, 500),
    "policy": st.sampled_from(["refuse", "window", "middle", "summarise", "retrieve"]),
    "low_water": st.sampled_from([None, 0.1, 0.9]),
    "pins": st.sets(st.integers(0, 22), max_size=2),
    "documents": st.lists(st.builds(Document, TEXTS, st.none() | TEXTS), max_size=2),
    "passages": st.lists(TEXTS, max_size=2),
    "summaries": st.lists(st.tuples(st.integers(0, 22), TEXTS), max_size=3),
    "cut": st.none() | st.integers(0, 22),
}


@settings(SETTINGS, max_examples=drawn(50, 300))
@given(**DRAWN)
def test_an_inspection_is_the_receipts(tokenizer: Tokenizer, **drawn: Any) -> None:
    _check(tokenizer, **drawn)


def _check(tokenizer: Tokenizer, chat: tuple[Message, ...], **drawn: Any) -> None:
    prompt = _prompt(tokenizer, chat, **drawn)
    if prompt is None:
        return
    assert prompt.inspection is not None
    plain = _prompt(tokenizer, chat, **drawn, inspect=False)
    assert plain is not None and plain.inspection is None
    assert (plain.receipt, plain.token_ids) == (prompt.receipt, prompt.token_ids), "asking changes nothing"
    check(tokenizer, prompt)
    if tokenizer.chat_template == CHAT_TEMPLATE:
        _check_texts(prompt, chat)
    own = [each for each in prompt.inspection.messages if each.role in ("system", "user", "assistant")]
    assert [(each.id, each.role) for each in own] == [(f"m_{at}", message.role) for at, message in enumerate(chat)]
    assert [each.id for each in prompt.inspection.messages if each.role == "document"] == [
        f"d_{at}" for at in range(len(drawn["documents"]))
    ]


def _check_texts(prompt: Prompt, chat: tuple[Message, ...]) -> None:
    """Where control tokens part the texts, the tokens of a message are its text."""
    assert prompt.inspection is not None
    texts: dict[int | None, str] = {}
    for token in prompt.inspection.rendered:
        texts[token.message] = texts.get(token.message, "") + token.text
    for at, each in enumerate(prompt.inspection.messages):
        if each.id is not None and each.id.startswith("m_") and "of its middle" not in each.why:
            is_sent = each.state in ("kept", "recalled")
            assert texts.get(at, "") == (chat[int(each.id[2:])].content.strip() if is_sent else "")


def _prompt(
    tokenizer: Tokenizer,
    chat: tuple[Message, ...],
    window: int,
    policy: Any,
    low_water: float | None,
    pins: set[int],
    documents: list[Document],
    passages: list[str],
    summaries: list[tuple[int, str]],
    cut: int | None,
    inspect: bool = True,
) -> Prompt | None:
    """None where the prompt is refused."""
    first = sum(message.role == "system" for message in chat)
    starts = {first, *(at for at in range(first, len(chat)) if chat[at].role == "user")}
    past = Past(
        cut=f"m_{cut}" if cut in starts else "",
        summaries=tuple(each for each in summaries if each[1].strip()),
        passages=tuple(Document(text, id=f"k_{at}") for at, text in enumerate(passages)),
    )
    pin = tuple(f"m_{at}" for at in pins if at < len(chat))
    options = ContextOptions(policy, low_water=low_water, pin=pin, inspect=inspect)
    source, given = Chat(chat, past=past), tuple(documents)
    try:
        return build_prompt(tokenizer, window, source, documents=given, max_new_tokens=4, context=options)
    except ContextOverflow:
        return None


def check(tokenizer: Tokenizer, prompt: Prompt) -> None:
    """The equations of docs/api.md, "Inspection"."""
    check_rendered(tokenizer, prompt)
    receipt, inspection = prompt.receipt, prompt.inspection
    assert inspection is not None
    messages = inspection.messages
    for state in ("dropped", "summarised", "recalled"):
        told = tuple(each.id for each in messages if each.state == state and each.role != "document")
        assert told == getattr(receipt, state), state
    gone = [each for each in messages if each.state in ("dropped", "summarised") and each.role != "document"]
    shortened = receipt.dropped_tokens - sum(each.tokens for each in gone)
    assert (shortened > 0) == any("the middle of the last turn" in note for note in receipt.notes) and shortened >= 0
    assert inspection.unlisted == 0


def check_rendered(tokenizer: Tokenizer, prompt: Prompt) -> None:
    receipt, inspection = prompt.receipt, prompt.inspection
    assert inspection is not None and all(each.why for each in inspection.messages)
    rendered, messages = inspection.rendered, inspection.messages
    assert tuple(token.id for token in rendered) == prompt.token_ids
    assert "".join(token.text for token in rendered) == tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    sent = {at: each for at, each in enumerate(messages) if each.state in ("kept", "recalled")}
    owned = Counter(token.message for token in rendered)
    assert receipt.parts.template == owned.pop(None, 0)
    assert {at: each.tokens for at, each in sent.items() if each.tokens} == owned
    assert receipt.parts.to_dict() == {"template": receipt.parts.template, **_parts(list(sent.values()))}


def _parts(sent: list[InspectedMessage]) -> dict[str, int]:
    *others, current = sent
    part_of = {"system": "system", "document": "documents", "knowledge": "documents", "summary": "summary"}
    parts = Counter({"system": 0, "documents": 0, "summary": 0, "history": 0, "current": current.tokens})
    for each in others:
        parts[part_of.get(each.role, "history")] += each.tokens
    return dict(parts)


@pytest.fixture(scope="module", params=[byte_level, llama], ids=["byte level", "llama"])
def calling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(tmp_path_factory.mktemp("tokenizer"), request.param(), chat_template=TEMPLATES["json"])


@settings(max_examples=60, deadline=None)
@given(chats_with_calls(), st.integers(60, 900), st.sampled_from(["window", "middle", "retrieve"]))
def test_calls_and_results_are_their_messages(
    calling: Tokenizer, chat: tuple[Message, ...], window: int, policy: Any
) -> None:
    options = ContextOptions(policy, inspect=True)
    try:
        prompt = build_prompt(calling, window, Chat(chat), max_new_tokens=8, context=options)
    except ContextOverflow:
        return
    check(calling, prompt)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(TEXTS.filter(bool), st.lists(st.integers(0, 300), min_size=1, max_size=30)), st.none() | st.just(3))
def test_a_raw_prompt_is_one_message(tokenizer: Tokenizer, given: str | list[int], truncate: int | None) -> None:
    source = Text(given) if isinstance(given, str) else Ids(tuple(id % tokenizer.vocab_size for id in given))
    options = ContextOptions(inspect=True)
    prompt = build_prompt(tokenizer, 400, source, max_new_tokens=4, truncate=truncate, context=options)
    assert prompt.inspection is not None
    check_rendered(tokenizer, prompt)
    [message] = prompt.inspection.messages
    assert (message.id, message.role, message.state) == (None, "prompt", "kept")
    assert ("`truncate`" in message.why) == (prompt.receipt.dropped_tokens > 0)


@pytest.fixture(scope="module", params=[byte_level, llama], ids=["byte level", "llama"])
def parted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(tmp_path_factory.mktemp("tokenizer"), request.param())


UNSHRUNK = settings(SETTINGS, phases=[Phase.generate], database=None, print_blob=False)


@pytest.mark.parametrize("bug", ["owners", "template", "tokens"])
def test_the_same_checks_find_a_planted_bug(parted: Tokenizer, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    owners, made = EncodedChat.owners, InspectedMessage
    match bug:
        case "owners":
            monkeypatch.setattr(EncodedChat, "owners", lambda self: [None, *list(owners(self))[:-1]])
        case "template":
            monkeypatch.setattr(counts.Sent, "left_out_by_template", lambda self: {0} - {len(self.messages) - 1})
        case _:
            monkeypatch.setattr(
                inspection, "InspectedMessage", lambda id, role, tokens, *rest: made(id, role, tokens + 1, *rest)
            )

    @UNSHRUNK
    @given(**DRAWN)
    def with_a_bug(**drawn: Any) -> None:
        _check(parted, **drawn)

    with pytest.raises(AssertionError):
        with_a_bug()
