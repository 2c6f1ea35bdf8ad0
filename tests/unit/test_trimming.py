"""Trimming keeps the promises of each policy; random chats show others (tests/property/test_trimming.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.context.budget import Budget, ContextOptions
from service.context.sources import Before, Past
from service.context.trimming import Trimmed, trim
from service.errors import ContextOverflow
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer
from tests.tokenizers import byte_level, load

TALK = [Message(role, f"{role} {turn}") for turn in range(8) for role in ("user", "assistant")][:-1]
NOTHING = Past()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    return load(directory, byte_level())


def trimmed(tokenizer: Tokenizer, messages: list[Message], limit: int, policy: str, past: Past = NOTHING) -> Trimmed:
    options = ContextOptions(policy, max_input_tokens=limit, summary_budget=60)  # type: ignore[arg-type]
    names = [f"m_{at}" for at in range(len(messages))]
    return trim(tokenizer, Budget(4096, 16, options), messages, names, past=past)


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
