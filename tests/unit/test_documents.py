"""Documents that do not fit their budget: by rank, or by what matches the question."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.context.budget import ContextOptions
from service.context.excerpts import LEAST, by_match, by_rank, joined, leading, spans_of
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


LONG = "The kimchi box is eight thousand won. 불고기 도시락은 구천오백 원이에요! Is the salad six thousand? Yes it is"
SENTENCES = [
    "The kimchi box is eight thousand won.",
    "불고기 도시락은 구천오백 원이에요!",
    "Is the salad six thousand?",
    "Yes it is",
]


def test_one_long_paragraph_is_cut_between_sentences_and_said(tokenizer: Tokenizer) -> None:
    options = ContextOptions("window", documents_budget=tokenizer.text_tokens(" ".join(SENTENCES[:2])) + 4)
    chat = Chat((Message("user", "how much?"),))
    prompt = build_prompt(tokenizer, 900, chat, documents=(Document(LONG), HOURS), max_new_tokens=8, context=options)
    receipt = prompt.receipt
    assert receipt.to_dict()["documents"] == {"kept": ["d_0"], "dropped": ["d_1"], "cut": ["d_0"]}
    assert receipt.truncated and 0 < receipt.parts.documents <= options.documents_budget  # type: ignore[operator]
    sent = tokenizer.decode(prompt.token_ids)
    assert " ".join(SENTENCES[:2]) in sent and SENTENCES[2] not in sent
    tokens = tokenizer.text_tokens(" ".join(SENTENCES[:2]))
    assert receipt.notes == (f"document d_0 is cut: {tokens} of its {tokenizer.text_tokens(LONG)} tokens are sent",)


@pytest.mark.parametrize("policy", ["window", "middle", "retrieve"])
def test_one_long_sentence_is_cut_between_tokens(tokenizer: Tokenizer, policy: str) -> None:
    """Also where the template writes it longer than it is."""
    options = ContextOptions(policy, documents_budget=40)  # type: ignore[arg-type]
    document = Document("도시락 😀 lunch box " * 50, "Menu")
    chat = Chat((Message("user", "lunch box?"),))
    receipt = build_prompt(tokenizer, 400, chat, documents=(document,), max_new_tokens=8, context=options).receipt
    assert receipt.documents_cut == ("d_0",) and LEAST < receipt.parts.documents <= 40
    tight = ContextOptions(policy, documents_budget=LEAST - 1)  # type: ignore[arg-type]
    receipt = build_prompt(tokenizer, 400, chat, documents=(document,), max_new_tokens=8, context=tight).receipt
    assert receipt.documents_dropped == ("d_0",), "too little to be worth it"


def test_by_match_finds_the_sentence_in_a_long_paragraph(tokenizer: Tokenizer) -> None:
    budget = tokenizer.text_tokens(SENTENCES[2])
    assert by_match(tokenizer, (Document(LONG),), budget, "the salad, six thousand?") == [(0, Document(SENTENCES[2]))]
    more = sum(map(tokenizer.text_tokens, (SENTENCES[0], SENTENCES[2]))) + 1
    (_, both), *_ = by_match(tokenizer, (Document(LONG),), more, "is the kimchi box or the salad thousand")
    assert both.text == f"{SENTENCES[0]}\n\n{SENTENCES[2]}"


def test_a_sentence_is_not_read_anew_for_each_of_its_parts(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    encode = Tokenizer.encode_with_offsets

    def watched(self: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[tuple[int, str, int, int]]:
        read.append(len(text))
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_with_offsets", watched)
    text = " ".join(f"w{n}" for n in range(2_000))
    spans = list(spans_of(tokenizer, text, 16))
    assert len(spans) > 400 and spans[-1][1] == len(text)
    assert sum(read) < 40 * len(text), "a share for each part, not the whole rest"


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="ab 가😀.!\n", max_size=120),
    tokens=st.integers(-3, 120),
)
def test_any_text_is_cut_within_any_number_of_tokens(text: str, tokens: int) -> None:
    tokenizer = _shared()
    begun = leading(tokenizer, text, tokens)
    assert text.startswith(begun) and (not begun or tokenizer.text_tokens(begun) <= tokens)
    assert begun == text or tokenizer.text_tokens(text) > tokens
    spans = list(spans_of(tokenizer, text, tokens))
    assert all(tokenizer.text_tokens(text[slice(*span)]) <= tokens for span in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    if tokens >= LEAST:
        assert "".join(joined(text, spans).split()) == "".join(text.split()), "nothing but white space is left out"


@cache
def _shared() -> Tokenizer:
    with TemporaryDirectory() as directory:
        return load(Path(directory), byte_level())
