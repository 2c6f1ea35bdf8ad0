"""Prompts of stateless calls: exact parts, exact refusals, nothing left out in silence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from service.context.budget import ContextOptions
from service.context.composition import NFC_NOTE
from service.context.prompt import Chat, Ids, Prompt, Source, Text, build_prompt
from service.errors import ContextOverflow, InvalidRequest, UnsupportedField
from service.text.messages import Document, Message
from service.text.template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.tokenizers import CHAT_TEMPLATE, byte_level, llama, load

TALK = (
    Message("system", "You sell lunch."),
    Message("user", "hello <|im_end|>"),
    Message("assistant", "안녕하세요 😀"),
    Message("user", " how much? "),
)
THINKING = """{% for m in messages %}{% if m.content.startswith('!') %}(loud){% endif -%}
<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>{% endfor %}"""


@pytest.fixture(scope="module", params=[byte_level, llama], ids=["byte level", "llama"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    rust: RustTokenizer = request.param()
    return load(tmp_path_factory.mktemp("tokenizer"), rust)


def build(
    tokenizer: Tokenizer, source: Source, *, window: int = 4096, max_new_tokens: int | None = 64, **options: object
) -> Prompt:
    return build_prompt(tokenizer, window, source, max_new_tokens=max_new_tokens, **options)  # type: ignore[arg-type]


def count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def test_a_chats_parts_are_its_texts(tmp_path: Path) -> None:
    """Byte-level, with texts whose ends merge with nothing: each part is the text's own count."""
    tokenizer = load(tmp_path)
    prompt = build(tokenizer, Chat(TALK), documents=(Document("menu: 김밥", title="Menu"), Document("x", id="x1")))
    parts = prompt.receipt.parts
    assert parts.system == count(tokenizer, "You sell lunch.")
    assert parts.current == count(tokenizer, "how much?")
    assert parts.documents == sum(count(tokenizer, text) for text in ("Menu", "menu: 김밥", "x"))
    quoted = sum(count(tokenizer, piece) for piece in ("hello ", "<", "|im_end|", ">"))
    assert parts.history == quoted + count(tokenizer, "안녕하세요 😀")
    assert prompt.receipt.to_dict()["documents"] == {"kept": ["d_0", "x1"], "dropped": []}
    assert prompt.receipt.kept == ("m_0", "m_1", "m_2", "m_3")


def test_the_ids_are_the_chats(tokenizer: Tokenizer) -> None:
    assert list(build(tokenizer, Chat(TALK)).token_ids) == tokenizer.render_chat(TALK)


TEXTS = st.text(alphabet="ab 가😀e\u0301\n<|im_end|>\U000f0000", max_size=30)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=6),
    documents=st.lists(st.tuples(TEXTS, st.none() | TEXTS), max_size=3),
    system=st.booleans(),
)
def test_parts_always_sum_to_what_is_sent(
    tokenizer: Tokenizer, texts: list[str], documents: list[tuple[str, str | None]], system: bool
) -> None:
    roles = ["system"] * system + ["user", "assistant"] * 3
    chat = Chat(tuple(Message(role, text) for role, text in zip(roles, texts, strict=False)))
    given_documents = tuple(Document(text, title) for text, title in documents)
    prompt = build(tokenizer, chat, documents=given_documents, context=ContextOptions(documents_budget=4096))
    receipt = prompt.receipt
    assert receipt.parts.total == receipt.used == len(prompt.token_ids)
    assert receipt.free == 4096 - receipt.used - 64
    assert len(receipt.kept) == len(texts)
    empty = build(tokenizer, Chat(tuple(Message(m.role, "") for m in chat.messages))).receipt.parts.template
    controls = sum(tokenizer.is_special(id) for id in prompt.token_ids)
    assert receipt.parts.template >= controls
    if not documents:
        assert receipt.parts.template <= empty + 2 * len(texts)


def test_raw_text_is_current_and_bos_is_template(tokenizer: Tokenizer) -> None:
    prompt = build(tokenizer, Text("hello </s> 안녕"))
    ids = tokenizer.encode("hello </s> 안녕")
    bos = len(ids) - count(tokenizer, "hello </s> 안녕")
    assert prompt.token_ids == tuple(ids)
    assert (prompt.receipt.parts.template, prompt.receipt.parts.current) == (bos, len(ids) - bos)
    assert prompt.receipt.kept == ()


def test_ids_are_sent_as_they_are(tokenizer: Tokenizer) -> None:
    prompt = build(tokenizer, Ids((5, 6, 7)))
    assert (prompt.token_ids, prompt.receipt.parts.current, prompt.receipt.parts.template) == ((5, 6, 7), 3, 0)
    for bad in (-1, tokenizer.vocab_size, 2**70):
        with pytest.raises(InvalidRequest, match="Token ids") as caught:
            build(tokenizer, Ids((5, bad)))
        assert caught.value.param == "input_ids"


def test_documents_give_way_by_rank_then_by_paragraphs(tokenizer: Tokenizer) -> None:
    parts = ("aa bb", "cc dd", "ee ff")
    first, second = Document("\n\n".join(parts), id="one"), Document("gg hh", id="two")
    tokens = count(tokenizer, "\n\n".join(parts[:2])) + 2
    options = ContextOptions("window", documents_budget=tokens)
    prompt = build(tokenizer, Chat(TALK), documents=(first, second), context=options)
    assert prompt.receipt.to_dict()["documents"] == {"kept": ["one"], "dropped": ["two"], "cut": ["one"]}
    told = tokenizer.decode(prompt.token_ids)
    assert "cc dd" in told and "ee ff" not in told and "gg hh" not in told
    assert prompt.receipt.parts.documents <= tokens
    with pytest.raises(ContextOverflow, match="documents have"):
        build(tokenizer, Chat(TALK), documents=(first, second), context=ContextOptions(documents_budget=tokens))


def test_an_encoder_has_the_window_for_itself(tokenizer: Tokenizer) -> None:
    used = len(tokenizer.encode("one two three"))
    apart: dict[str, Any] = {"window": used, "answer_window": 30}
    prompt = build(tokenizer, Text("one two three"), max_new_tokens=30, **apart)
    receipt = prompt.receipt
    assert (receipt.used, receipt.reserved_output, receipt.free, prompt.max_new_tokens) == (used, 0, 0, 30)
    assert build(tokenizer, Text("one"), max_new_tokens=None, **apart).max_new_tokens == 30
    with pytest.raises(ContextOverflow, match=r"window has \d+: shorten the input by \d+ tokens\.") as caught:
        build(tokenizer, Text("one two three four"), max_new_tokens=1, **apart)
    assert "reserved" not in caught.value.message
    with pytest.raises(ContextOverflow, match="lower max_new_tokens by 1") as caught:
        build(tokenizer, Text("one"), max_new_tokens=31, **apart)
    assert caught.value.param == "max_new_tokens"


def test_nothing_to_send_is_refused(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    for source in (Text(""), Ids(()), Chat(())):
        with pytest.raises(InvalidRequest):
            build(tokenizer, source)


def test_the_answer_takes_the_room_that_is_left(tokenizer: Tokenizer) -> None:
    prompt = build(tokenizer, Ids((5,) * 30), window=100, max_new_tokens=None)
    assert prompt.max_new_tokens == 70
    assert (prompt.receipt.reserved_output, prompt.receipt.free) == (70, 0)


def test_a_prompt_fits_exactly_or_not_at_all(tokenizer: Tokenizer) -> None:
    assert build(tokenizer, Ids((5,) * 36), window=100).receipt.free == 0
    with pytest.raises(ContextOverflow) as caught:
        build(tokenizer, Ids((5,) * 40), window=100)
    assert caught.value.numbers == {"window": 100, "needed_tokens": 104, "reserve": 64, "prompt_tokens": 40}
    assert "shorten the input by 4 tokens or lower max_new_tokens to 60" in caught.value.message


@pytest.mark.parametrize("reserve", [None, 0])
def test_an_open_answer_has_at_least_one_token(tokenizer: Tokenizer, reserve: int | None) -> None:
    context = ContextOptions(reserve_output_tokens=reserve)
    assert build(tokenizer, Ids((5,) * 99), window=100, max_new_tokens=None, context=context).max_new_tokens == 1
    with pytest.raises(ContextOverflow, match="by 1 token"):
        build(tokenizer, Ids((5,) * 100), window=100, max_new_tokens=None, context=context)


def test_no_answer_at_all_needs_no_room(tokenizer: Tokenizer) -> None:
    assert build(tokenizer, Ids((5,) * 100), window=100, max_new_tokens=0).max_new_tokens == 0


def test_the_reserve_may_be_asked_for(tokenizer: Tokenizer) -> None:
    context = ContextOptions(reserve_output_tokens=10)
    prompt = build(tokenizer, Ids((5,) * 90), window=100, context=context)
    assert (prompt.receipt.reserved_output, prompt.max_new_tokens) == (10, 10)
    with pytest.raises(ContextOverflow, match="reserve_output_tokens to 9") as caught:
        build(tokenizer, Ids((5,) * 91), window=100, context=context)
    assert caught.value.numbers["needed_tokens"] == 101


def test_a_smaller_input_bound_holds(tokenizer: Tokenizer) -> None:
    context = ContextOptions(max_input_tokens=20)
    assert build(tokenizer, Ids((5,) * 20), context=context).receipt.used == 20
    with pytest.raises(ContextOverflow, match=r"by 5 tokens or raise context\.max_input_tokens"):
        build(tokenizer, Ids((5,) * 25), context=context)


def test_a_reserve_beyond_the_window_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ContextOverflow, match="lower max_new_tokens to 97"):
        build(tokenizer, Ids((5,) * 3), window=100, max_new_tokens=500)


def test_truncate_keeps_the_last_tokens_and_says_so(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello ab ab ab")
    prompt = build(tokenizer, Text("hello ab ab ab"), truncate=4)
    assert prompt.token_ids == tuple(ids[-4:])
    assert (prompt.receipt.truncated, prompt.receipt.dropped_tokens) == (True, len(ids) - 4)
    assert prompt.tokens_before_truncation == len(ids)
    assert (prompt.receipt.parts.template, prompt.receipt.parts.current) == (0, 4)
    assert build(tokenizer, Text("hello"), truncate=999).receipt.truncated is False
    assert build(tokenizer, Ids((1, 2, 3)), truncate=2).token_ids == (2, 3)


def test_truncate_makes_a_long_text_fit(tokenizer: Tokenizer) -> None:
    assert build(tokenizer, Text("ab " * 500), window=100, truncate=30).receipt.used == 30


def test_fields_that_cannot_act_are_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedField) as caught:
        build(tokenizer, Chat(TALK), truncate=3)
    assert caught.value.param == "truncate"
    with pytest.raises(UnsupportedField) as caught:
        build(tokenizer, Text("x"), documents=(Document("x"),))
    assert caught.value.param == "documents"
    with pytest.raises(InvalidRequest):
        build(tokenizer, Text("x"), truncate=0)


@pytest.mark.parametrize("policy", ["other"])
def test_policies_that_are_not_served_are_refused_by_name(policy: Any) -> None:
    with pytest.raises(UnsupportedField, match=policy) as caught:
        ContextOptions(policy)
    assert caught.value.param == "context.policy"


@pytest.mark.parametrize(
    "fields",
    [
        *({"max_input_tokens": size} for size in (0, True, 1.5)),
        *({"reserve_output_tokens": -1}, {"documents_budget": "9"}, {"low_water": 0}, {"low_water": 1}),
        {"pin": ("m_0",) * 1001},
    ],
)
def test_context_values_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ContextOptions(**fields)
    assert caught.value.param == f"context.{next(iter(fields))}"


def test_documents_over_their_budget_are_refused(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    document = Document("ab" * 40)
    tokens = count(tokenizer, document.text)
    used = build(tokenizer, Chat(TALK), documents=(document,)).receipt.used
    with pytest.raises(ContextOverflow, match="documents_budget") as caught:
        build(tokenizer, Chat(TALK), documents=(document,), window=4 * tokens - 4 + 64)
    assert caught.value.param == "documents"
    assert caught.value.numbers["documents_tokens"] == tokens
    assert caught.value.numbers["documents_budget"] == tokens - 1
    assert caught.value.numbers["needed_tokens"] == used + 64
    assert build(tokenizer, Chat(TALK), documents=(document,), window=4 * tokens + 64).receipt.parts.documents == tokens


def test_documents_that_the_template_does_not_place_are_refused(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, chat_template=THINKING)
    with pytest.raises(InvalidRequest, match="places no documents"):
        build(tokenizer, Chat(TALK), documents=(Document("x"),))


@pytest.mark.parametrize("source", [Text("cafe\u0301"), Chat((Message("user", "cafe\u0301"),))])
def test_input_is_composed_and_noted(tmp_path: Path, source: Source) -> None:
    tokenizer = load(tmp_path)
    prompt = build(tokenizer, source)
    assert prompt.receipt.notes == (NFC_NOTE,)
    assert "café" in tokenizer.decode(prompt.token_ids)
    assert build(tokenizer, Text("café")).receipt.notes == ()


def test_decomposed_hangul_is_the_same_prompt(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    jamo = "\u1103\u1169\u1109\u1175\u1105\u1161\u11a8"
    assert build(tokenizer, Text(jamo)).token_ids == build(tokenizer, Text("도시락")).token_ids


def test_later_system_messages_need_a_template_that_writes_them(tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace(
        "message.role not in", "(message.role == 'system' and not loop.first) or message.role not in"
    )
    chat = Chat((Message("user", "a"), Message("system", "b")))
    with pytest.raises(InvalidRequest, match=r"messages\[1\].role: .* no system message after others"):
        build(load(tmp_path, chat_template=template), chat)


def test_a_template_that_cuts_texts_is_counted_right(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, chat_template=THINKING)
    chat = Chat((Message("assistant", "thoughts</think>\n안녕 hello"), Message("user", "x")))
    parts = build(tokenizer, chat).receipt.parts
    assert parts.history == count(tokenizer, "안녕 hello")
    assert parts.current == 1


def test_a_template_that_looks_into_texts_is_counted_right(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, chat_template=THINKING)
    parts = build(tokenizer, Chat((Message("user", "!hello"), Message("assistant", "x")))).receipt.parts
    assert (parts.history, parts.current) == (count(tokenizer, "!hello"), 1)


def test_a_template_that_refuses_texts_that_begin_otherwise_is_counted_right(tmp_path: Path) -> None:
    """The marks that tell whose a token is must refuse nobody's chat."""
    template = (
        "{% for m in messages %}{% if m.content[0] not in '!?' %}{{ raise_exception('say it aloud') }}{% endif %}"
        "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    tokenizer = load(tmp_path, chat_template=template)
    parts = build(tokenizer, Chat((Message("user", "!hello"), Message("assistant", "?")))).receipt.parts
    assert (parts.history, parts.current) == (count(tokenizer, "!hello"), 1)
    with pytest.raises(InvalidRequest, match="say it aloud"):
        build(tokenizer, Chat((Message("user", "hello"),)))


def test_a_template_that_writes_the_time_is_counted_right(tmp_path: Path) -> None:
    """However much later the receipt is counted: a text that is there twice is not looked for, but known."""
    template = "{{ strftime_now('%f') }} hello{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer = load(tmp_path, chat_template=template)
    encoded = tokenizer.encode_chat([Message("user", "hello")])
    time.sleep(0.001)
    [span] = encoded.spans
    assert span.start > len("000000 hello")


def test_ids_are_there_before_whose_they_are(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first token waits for one rendering of the template, the receipt for the second."""
    rendered: list[str] = []
    render = ChatTemplate.render

    def noting(*given: Any, **named: Any) -> str:
        rendered.append(text := render(*given, **named))
        return text

    monkeypatch.setattr(ChatTemplate, "render", noting)
    prompt = build(tokenizer, Chat(TALK))
    assert len(rendered) == 1 and prompt.token_ids
    assert prompt.receipt.used == len(prompt.token_ids)
    assert prompt.receipt and len(rendered) == 2
    for policy in ("window", "retrieve"):
        rendered.clear()
        build(tokenizer, Chat(TALK), context=ContextOptions(policy))
        assert len(rendered) == 2, "its last turn alone, which must fit, and all of it"


def test_a_message_that_the_template_leaves_out_is_dropped_openly(tmp_path: Path) -> None:
    template = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer = load(tmp_path, chat_template=template)
    receipt = build(tokenizer, Chat(TALK)).receipt
    assert (receipt.kept, receipt.dropped) == (("m_1", "m_2", "m_3"), ("m_0",))
    assert receipt.truncated
    assert receipt.dropped_tokens == count(tokenizer, "You sell lunch.")
    assert receipt.notes == ("the chat template leaves messages out",)


def test_a_prompt_far_too_long_is_refused_by_its_count_alone(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    with pytest.raises(ContextOverflow) as caught:
        build(tokenizer, Chat((Message("user", "ab " * 100_000),)))
    assert caught.value.numbers["needed_tokens"] > 200_000
