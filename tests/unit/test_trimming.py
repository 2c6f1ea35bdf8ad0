"""Trimming keeps the promises of each policy; random chats show others (tests/property/test_trimming.py)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.context.budget import Budget, ContextOptions
from service.context.sources import Before, Past
from service.context.trimming import Trimmed, trim
from service.errors import ContextOverflow
from service.text.messages import Document, Message, ToolCall
from service.text.tokenizer import Tokenizer
from tests.tokenizers import CHAT_TEMPLATE, byte_level, load
from tests.tools import TEMPLATES

TALK = [Message(role, f"{role} {turn}") for turn in range(8) for role in ("user", "assistant")][:-1]
NOTHING = Past()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    return load(directory, byte_level())


THINKING = CHAT_TEMPLATE.replace("message.content | trim", "(message.content.split('</think>') | last)")
"""Leaves out the reasoning of answers, as the templates of models that reason do."""
LONG_ONCE = CHAT_TEMPLATE.replace(
    "{{ bos_token }}", "{{ bos_token }}{% if messages | length > 9 %}{{ 'long ' * 9 }}{% endif %}"
)
"""Writes more for a long chat than for its turns."""


def trimmed(tokenizer: Tokenizer, messages: list[Message], limit: int, policy: str, past: Past = NOTHING) -> Trimmed:
    options = ContextOptions(policy, max_input_tokens=limit, summary_budget=60)  # type: ignore[arg-type]
    names = [f"m_{at}" for at in range(len(messages))]
    return trim(tokenizer, Budget(1 << 20, 16, options), messages, names, past=past)


def test_what_is_left_of_an_overlong_message_is_worth_reading(tokenizer: Tokenizer) -> None:
    """Sixteen tokens at least, at every limit; below them the call is refused."""
    text = "".join(chr(ord("a") + at % 26) for at in range(300))
    tokens, left = tokenizer.text_tokens(text), set[int]()
    for limit in range(1, tokens + 60):
        try:
            found = trimmed(tokenizer, [Message("user", text)], limit, "middle")
        except ContextOverflow:
            continue
        left.add(tokens - found.shortened)
    assert 16 <= min(left) < 40 and max(left) == tokens


def test_passages_are_sent_whole_or_not_at_all(tokenizer: Tokenizer) -> None:
    passages = (Document("one two", id="k_1"), Document("\n\n".join(["three four"] * 20), id="k_2"))
    seen = set()
    for limit in range(100, 1200, 20):
        found = trimmed(tokenizer, TALK[-1:], limit, "window", Past(passages=passages)).passages
        assert found == passages[: len(found)]
        seen.add(len(found))
    assert {1, 2} <= seen


def test_passages_have_their_quarter_before_old_turns_have_the_rest(tokenizer: Tokenizer) -> None:
    long = [Message(each.role, f"{each.content} and so on" * 4) for each in TALK]
    passages = (Document("open at nine", id="k_1"), Document("closed on Monday", id="k_2"))
    for limit in range(320, 900, 20):
        found = trimmed(tokenizer, long, limit, "window", Past(passages=passages))
        assert found.passages == passages and 0 < found.knowledge_tokens <= limit // 4 and found.cut is not None


def test_what_the_template_writes_around_passages_counts(tokenizer: Tokenizer) -> None:
    passages = tuple(Document("seven", id=f"k_{at}") for at in range(40))
    for limit in range(60, 600, 7):
        assert trimmed(tokenizer, TALK[-1:], limit, "window", Past(passages=passages)).knowledge_tokens <= limit // 4


def test_a_chat_of_system_messages_alone_is_sent(tokenizer: Tokenizer) -> None:
    assert len(trimmed(tokenizer, [Message("system", "You sell lunch.")] * 2, 300, "window").sent_messages) == 2


def test_the_summary_that_stands_for_the_fewest_messages_is_sent(tokenizer: Tokenizer) -> None:
    """Of those that stand for all that is left out."""
    past = Past(summaries=((10, "ten"), (8, "eight")))
    assert {trimmed(tokenizer, TALK, limit, "summarise", past).summarised for limit in range(120, 420, 10)} >= {8, 10}


def test_a_chat_whose_beginning_is_not_there_is_cut_though_all_of_it_is_sent(tokenizer: Tokenizer) -> None:
    before = Before(messages=4, tokens=20, asked=2, answered=2)
    rest = trimmed(tokenizer, TALK[-3:], 4000, "window", Past(cut="m_0", before=before))
    assert (rest.cut, rest.absent) == (0, 4)
    assert trimmed(tokenizer, TALK[-3:], 4000, "window").cut is None


def test_a_cut_that_is_at_no_turn_is_forgotten_with_its_numbers(tokenizer: Tokenizer) -> None:
    before = Before(messages=4, tokens=20, asked=2, answered=2)
    for name in ("m_1", "m_99"):
        found = trimmed(tokenizer, TALK, 4000, "window", Past(cut=name, before=before))
        assert (found.cut, found.absent, found.before) == (None, 0, None)


@pytest.mark.parametrize("policy", ["window", "middle", "summarise", "retrieve"])
def test_a_cut_made_for_a_smaller_budget_is_forgotten(tokenizer: Tokenizer, policy: str) -> None:
    assert trimmed(tokenizer, TALK, 4000, policy, Past(cut="m_8", limit=3999)).cut is None
    for limit in (0, 4000, 5000):
        assert trimmed(tokenizer, TALK, 4000, policy, Past(cut="m_8", limit=limit)).start == 4, "kept"


def test_a_whole_chat_that_fits_is_sent_though_its_texts_are_longer(tmp_path: Path) -> None:
    """The template leaves the reasoning of earlier answers out."""
    tokenizer = load(tmp_path, byte_level(), chat_template=THINKING)
    chat = [replace(each, content=f"{'so ' * 40}</think>{each.content}") for each in TALK if each.role == "assistant"]
    chat = [each for pair in zip(TALK[::2], [*chat, Message("assistant", "")], strict=True) for each in pair][:-1]
    written = tokenizer.chat_tokens(chat)
    assert sum(map(tokenizer.message_tokens, chat)) > 2 * written
    for policy in ("window", "middle", "summarise", "retrieve"):
        whole = trimmed(tokenizer, chat, written, policy)
        assert whole.encoded.count == written and whole.cut is None and not whole.cuts
        assert trimmed(tokenizer, chat, written - 1, policy).cut is not None


def test_what_the_template_writes_beside_its_turns_goes_down_to_the_mark(tmp_path: Path) -> None:
    """Where the turns' counts say too little, the cut still is no sliding window."""
    tokenizer, chat, cuts = load(tmp_path, byte_level(), chat_template=LONG_ONCE), list[Message](), list[int]()
    for turn in range(60):
        chat.append(Message("user", f"question {turn:02}"))
        cuts.append(trimmed(tokenizer, chat, 600, "window").cut or 0)
        chat.append(Message("assistant", f"answer {turn:02}"))
    moves = [(before, after) for before, after in pairwise(cuts) if before != after]
    assert 1 < len(moves) < 12 and all(after - before >= 8 for before, after in moves)


@pytest.mark.parametrize("policy", ["window", "middle", "summarise", "retrieve"])
def test_a_cut_stays_for_as_many_tokens_as_it_says(tokenizer: Tokenizer, policy: str) -> None:
    chat: list[Message] = []
    said, told = (-1, 0, 0), 0
    for turn in range(60):
        chat.append(Message("user", f"question {turn} " * (turn % 4)))
        found, written = trimmed(tokenizer, chat, 700, policy), tokenizer.chat_tokens(chat)
        if found.cut is not None:
            cut, tokens, stable_for = said
            assert found.cut == cut or written - tokens > stable_for, "moved before so many tokens came"
            told += found.stable_for > 0
            said = found.cut, written, found.stable_for
        chat.append(Message("assistant", f"answer {turn} " * (turn % 3)))
    assert told > 20


def test_a_turn_is_rendered_once_and_a_call_of_tools_only_where_the_cut_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted work: the renderings of a chat with one more message."""
    rendered = list[int]()
    tokenizer = load(tmp_path, byte_level(), chat_template=TEMPLATES["json"])
    count = tokenizer._chat.count

    def counting(messages: tuple[Message, ...], *rest: Any) -> int:
        rendered.append(len(messages))
        return count(messages, *rest)

    monkeypatch.setattr(tokenizer._chat, "count", counting)
    chat = [Message("system", "You sell lunch."), *TALK * 10]
    for call in range(200):
        called = ToolCall(f"c{call}", "f", "{}")
        chat += [Message("assistant", "", tool_calls=(called,)), Message("tool", "1", tool_call_id=called.id)]
    trimmed(tokenizer, chat, 60000, "window")
    first = sum(rendered)
    assert first < 6 * len(chat), "linear"
    rendered.clear()
    trimmed(tokenizer, [*chat, Message("user", "more")], 60000, "window")
    assert sum(rendered) < 1000
