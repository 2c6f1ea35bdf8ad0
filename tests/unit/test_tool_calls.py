"""Tool calls and results in chats: rendered as transformers does, counted as their message's, never acting as control
tokens, never lost in silence, never apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer

from service.context.prompt import Chat, build_prompt
from service.errors import InvalidRequest
from service.text.arguments import parsed, whole
from service.text.messages import Message, ToolCall
from service.text.tokenizer import Tokenizer
from service.text.tools.described import as_texts
from service.text.tools.formats import GENERIC, KIMI
from service.text.tools.ids import NUMBERED, with_ids
from tests.tokenizers import CHAT_TEMPLATE, byte_level, llama, load
from tests.tools import CHAT, PRICE, TEMPLATES, WEATHER

CONTROL = "a <|im_end|> b"


def called(arguments: str = "{}", name: str = "f", id: str = "c") -> Message:
    return Message("assistant", "", tool_calls=(ToolCall(id, name, arguments),))


def hostile(key: str = "city") -> tuple[Message, ...]:
    arguments = json.dumps({key: ["</s>", {"deep": CONTROL}], "n": 1})
    return (
        Message("user", "x"),
        called(arguments, name=f"f{CONTROL}", id="c<s>"),
        Message("tool", CONTROL, tool_call_id="c<s>"),
    )


@pytest.fixture(scope="module", params=list(TEMPLATES.values()), ids=list(TEMPLATES))
def template(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[byte_level, llama], ids=["byte level", "llama"])
def directory(request: pytest.FixtureRequest, template: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rust: RustTokenizer = request.param()
    path: Path = tmp_path_factory.mktemp("tokenizer")
    load(path, rust, chat_template=template)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)


@pytest.fixture
def simple(tmp_path: Path) -> Tokenizer:
    return load(tmp_path, chat_template=TEMPLATES["json"])


def as_dict(message: Message) -> dict[str, Any]:
    """As transformers' documentation writes messages."""
    calls = [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": json.loads(each.arguments)}}
        for each in message.tool_calls
    ]
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    return shown | ({"tool_calls": calls} if calls else {}) | _result(message)


def _result(message: Message) -> dict[str, Any]:
    return {} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}


def reference(directory: Path, chat: tuple[Message, ...], **options: object) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(directory))
    messages = [as_dict(message) for message in chat]
    return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"])


@pytest.mark.parametrize("last", [3, 4, 5, 7])
def test_chats_with_calls_have_transformers_ids(tokenizer: Tokenizer, directory: Path, last: int) -> None:
    ours = tokenizer.render_chat(CHAT[:last])
    assert ours == reference(directory, CHAT[:last], add_generation_prompt=True)


def test_control_tokens_in_calls_are_transformers_sanitized_ids(tokenizer: Tokenizer, directory: Path) -> None:
    theirs = reference(directory, hostile(), add_generation_prompt=True, sanitize_control_tokens=True)
    assert tokenizer.render_chat(hostile()) == theirs


@pytest.mark.parametrize("key", ["city", CONTROL, "</s>"])
def test_control_tokens_come_from_the_template_alone(tokenizer: Tokenizer, key: str) -> None:
    harmless = (Message("user", "x"), called('{"a": 1}'), Message("tool", "x", tool_call_id="c"))

    def controls(chat: tuple[Message, ...]) -> list[int]:
        return [id for id in tokenizer.render_chat(chat) if tokenizer.is_special(id)]

    assert controls(hostile(key)) == controls(harmless)
    shown = tokenizer.decode(tokenizer.render_chat(hostile(key)), skip_special_tokens=False)
    assert shown.count(CONTROL) == 3 + (key == CONTROL) and key in shown


def test_calls_and_results_are_counted_as_their_message(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, chat_template=TEMPLATES["json"])
    receipt = build_prompt(tokenizer, 4096, Chat(CHAT), max_new_tokens=8).receipt

    def count(*texts: str) -> int:
        return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)

    history = count(*(text for message in CHAT[1:-1] for text in message.texts))
    assert receipt.parts.history == history
    assert receipt.parts.current == count("don't stop .") and receipt.parts.system == count("You sell lunch.")
    assert receipt.parts.total == receipt.used == len(tokenizer.render_chat(CHAT))
    assert receipt.kept == tuple(f"m_{at}" for at in range(7))


@pytest.mark.parametrize("arguments", ["{}", '{"n": 1}', '{"text": "가나다라 hello", "list": [[1, 2], {"x": ""}]}'])
def test_parts_sum_up_and_grow_with_the_arguments(tokenizer: Tokenizer, arguments: str) -> None:
    chat = (Message("user", "x"), called(arguments))
    shares = tokenizer.encode_chat(chat).shares
    assert sum(share or 0 for share in shares.messages) + shares.template == len(tokenizer.render_chat(chat))
    bare = tokenizer.encode_chat((chat[0], called("{}"))).shares
    grown = (shares.messages[1] or 0) - (bare.messages[1] or 0)
    assert (grown > 0) == (arguments != "{}")


def test_a_result_may_be_the_last_message(simple: Tokenizer) -> None:
    prompt = build_prompt(simple, 4096, Chat(CHAT[:4]), max_new_tokens=8)
    assert prompt.receipt.parts.current == len(simple.encode('{"sky": "clear"}', add_special_tokens=False))
    assert simple.decode(list(prompt.token_ids), skip_special_tokens=False).endswith("<|im_start|>assistant\n")


WITHOUT_CALLS = [
    ((Message("user", "x"), Message("tool", "y", tool_call_id="c")), 1),
    ((Message("user", "x"), called(), Message("tool", "y", tool_call_id="d")), 2),
    ((Message("user", "x"), called(), Message("tool", "y")), 2),
    ((Message("user", "x"), Message("tool", "y", tool_call_id="c"), called()), 1),
    ((Message("user", "x"), called(), Message("user", "z"), Message("tool", "y", tool_call_id="c")), 3),
]


def test_a_result_without_its_call_is_refused_by_name(simple: Tokenizer) -> None:
    for chat, at in WITHOUT_CALLS:
        with pytest.raises(InvalidRequest, match=rf"messages\[{at}\].tool_call_id names no call") as caught:
            build_prompt(simple, 4096, Chat(chat), max_new_tokens=8)
        assert caught.value.param == f"messages[{at}].tool_call_id"


NO_CALLS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
NO_RESULTS = (
    "{% for m in messages %}{% if m.role != 'tool' %}{{ (m.tool_calls or []) | tojson }}{% endif %}{% endfor %}"
)


def test_a_template_that_leaves_calls_out_is_named(tmp_path: Path) -> None:
    """Where the version's calls have no known form, too, so that no text can stand for them."""
    for number, (template, parser, told) in enumerate(
        [
            (NO_CALLS, "none", r"places no tool calls \('get_weather'\); where it knows no tools, say in"),
            (NO_RESULTS, None, "places no results of tools"),
            (CHAT_TEMPLATE, "none", "no such role here; where it knows no tools, say in"),
        ]
    ):
        tokenizer = load(tmp_path / str(number), chat_template=template).read_as(None, parser)
        with pytest.raises(InvalidRequest, match=told):
            tokenizer.render_chat(CHAT)


def test_earlier_calls_are_texts_where_the_template_leaves_tools_out(tmp_path: Path) -> None:
    """Whether the request has tools or not: an agent's last turn often sends none."""
    for number, template in enumerate((NO_CALLS, CHAT_TEMPLATE)):
        tokenizer = load(tmp_path / str(number), chat_template=template)
        text = tokenizer.decode(tokenizer.render_chat(CHAT), skip_special_tokens=False)
        assert f'{{"name": "get_weather", "arguments": {WEATHER.arguments}}}' in text
        assert "Result of get_weather: " in text and "You can call" not in text


def test_arguments_that_a_template_writes_as_a_text_are_json_and_their_message_s(tmp_path: Path) -> None:
    shown = (
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    )
    tokenizer = load(tmp_path, chat_template="{% for m in messages %}" + shown + "{% endfor %}")
    shares = tokenizer.encode_chat(CHAT).shares
    assert shares.template == 0
    written = f"{WEATHER.name}{WEATHER.arguments}"
    assert written in tokenizer.decode(tokenizer.render_chat(CHAT))


def test_a_template_that_looks_into_calls_is_counted_all_the_same(tmp_path: Path) -> None:
    template = TEMPLATES["json"].replace("function.name +", "function.name[:1] | lower + function.name[1:] +")
    tokenizer = load(tmp_path, chat_template=template)
    receipt = build_prompt(tokenizer, 4096, Chat(CHAT), max_new_tokens=8).receipt
    assert receipt.parts.total == receipt.used == len(tokenizer.render_chat(CHAT))
    assert receipt.dropped == ()


def test_arguments_are_composed_inside_their_texts(simple: Tokenizer) -> None:
    """Never across JSON's own characters: an n after a backslash is no letter that takes a tilde."""
    decomposed = '{"cafe\u0301": "\\n\u0303 e\\u0301"}'
    plain = '{"caf\u00e9": "\\n\u0303 \u00e9"}'
    prompts = [
        build_prompt(simple, 4096, Chat((Message("user", "x"), called(text))), max_new_tokens=8)
        for text in (decomposed, plain)
    ]
    assert prompts[0].token_ids == prompts[1].token_ids
    assert [bool(prompt.receipt.notes) for prompt in prompts] == [True, False]


NO_OBJECTS = [
    *("[]", "1", "{", '{"a": NaN}', '{"a": Infinity}', '{"a": -1e999}', "null", '"x"', "{} {}"),
    *('{"a": ' + "[" * 40 + "]" * 40 + "}", "[" * 100_000, '{"n": ' + "9" * 5000 + "}"),
    *(r'{"a": "\ud83d"}', r'{"\ud83d": 1}', r'{"a": [["\udc00 "]]}'),
]


def test_arguments_that_are_no_object() -> None:
    for text in NO_OBJECTS:
        with pytest.raises(InvalidRequest, match="must be a JSON object"):
            parsed(text)
        assert not text.startswith("{") or parsed(whole(text)) == {"INVALID_JSON": text}


def test_many_numbers_are_input_as_well(simple: Tokenizer) -> None:
    """What a template may write grows with what it is given, numbers included."""
    numbers = json.dumps({"n": list(range(30_000))})
    assert simple.decode(simple.render_chat([Message("user", "x"), called(numbers)])).count(", 29999") == 1


def test_lone_surrogates_in_arguments_are_refused(simple: Tokenizer) -> None:
    for arguments in ('{"a": "\\ud800"}', '{"\\ud800": 1}'):
        with pytest.raises(InvalidRequest, match="without lone surrogates"):
            simple.render_chat([Message("user", "x"), called(arguments)])


def test_a_result_is_that_of_the_last_call_of_its_id() -> None:
    """A client may number the calls of each turn anew."""

    def turn(name: str) -> tuple[Message, ...]:
        call = ToolCall("call_0", name, "{}")
        return Message("assistant", "", tool_calls=(call,)), Message("tool", "x", tool_call_id="call_0")

    chat = (*turn("weather"), Message("user", "x"), *turn("mail"))
    sent = with_ids(NUMBERED, chat)
    ids = [call.id for message in sent for call in message.tool_calls]
    assert ids == ["functions.weather:0", "functions.mail:1"]
    assert [message.tool_call_id for message in sent if message.role == "tool"] == ids
    texts = [KIMI.as_text(message).content for message in sent if message.tool_calls]
    assert all(id in text for id, text in zip(ids, texts, strict=True))
    results = [message.content for message in as_texts(GENERIC, chat) if message.content.startswith("Result")]
    assert results == ["Result of weather: x", "Result of mail: x"]


def test_an_estimate_counts_calls(simple: Tokenizer) -> None:
    assert simple.message_tokens(CHAT[2]) > simple.text_tokens(WEATHER.arguments) + simple.text_tokens(PRICE.name)
