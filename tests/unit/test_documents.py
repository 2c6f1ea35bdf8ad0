"""Documents that do not fit their budget: by rank, or by what matches the question."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.context.documents import by_match, by_rank
from service.context.options import ContextOptions
from service.context.prompt import Chat, build_prompt
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer
from tests.tokenizers import byte_level, load


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load(tmp_path, byte_level())


MENU = Document("Kimchi box: 8,000 won\n\nBulgogi box: 9,500 won\n\nSalad: 6,000 won", "Menu")
HOURS = Document("Open from ten to eight", "Hours")


def test_by_rank_keeps_the_first_and_its_leading_paragraphs(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.text_tokens
    budget = tokens("Menu") + tokens("Kimchi box: 8,000 won\n\nBulgogi box: 9,500 won")
    assert by_rank(tokenizer, (MENU, HOURS), budget) == [
        (0, Document("Kimchi box: 8,000 won\n\nBulgogi box: 9,500 won", "Menu"))
    ]


def test_by_match_keeps_what_the_question_is_about(tokenizer: Tokenizer) -> None:
    assert by_match(tokenizer, (MENU, HOURS), 10_000, "salad?") == [(0, MENU), (1, HOURS)]
    tokens = tokenizer.text_tokens
    budget = tokens("Menu") + tokens("Salad: 6,000 won") + 2
    assert by_match(tokenizer, (MENU, HOURS), budget, "how much is the salad") == [
        (0, Document("Salad: 6,000 won", "Menu"))
    ]
    assert by_match(tokenizer, (MENU, HOURS), tokens("Hours") + tokens(HOURS.text), "until when open")[0][0] == 1
    assert by_match(tokenizer, (MENU, HOURS), 0, "salad") == []


def test_the_receipt_names_what_was_chosen(tokenizer: Tokenizer) -> None:
    options = ContextOptions("retrieve", documents_budget=tokenizer.text_tokens("Hours" + HOURS.text) + 8)
    chat = Chat((Message("user", "until when are you open"),))
    prompt = build_prompt(tokenizer, 400, chat, documents=(MENU, HOURS), max_new_tokens=8, context=options)
    assert (prompt.receipt.documents_kept, prompt.receipt.documents_dropped) == (("d_1",), ("d_0",))
