"""From dialogues to training rows: token ids as the chat template renders them, and their weights in the loss."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from models.demo.dialogue import Asked, Dialogue
from models.demo.grammar import Style, dialogue
from models.demo.tokenizer import BEGIN, END, SPECIAL_TOKENS, WINDOW

# Weights of a value that is asked for, of the answer around it, and of any other reply.
VALUE, ANSWER, CHAT = 4.0, 1.0, 0.2


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one dialogue and the weight of each as a target."""

    token_ids: list[int]
    weights: list[float]


def encode(dialogue: Dialogue, tokenizer: Tokenizer) -> Row:
    """The row of `dialogue`: system prompt, documents, then the turns, each closed by END; cut to the window."""
    row = Row([BEGIN], [0.0])
    start = 1 if dialogue.messages[0]["role"] == "system" else 0
    if start:
        _append(row, tokenizer, "system", dialogue.messages[0]["content"])
    for document in dialogue.documents:
        title = document.get("title")
        _append(row, tokenizer, "documents", (f"{title}\n" if title else "") + document["text"])
    asked: dict[int, list[Asked]] = {}
    for entry in dialogue.asked:
        asked.setdefault(entry.index, []).append(entry)
    for index in range(start, len(dialogue.messages)):
        message = dialogue.messages[index]
        _append(row, tokenizer, message["role"], message["content"], asked.get(index))
    return Row(row.token_ids[:WINDOW], row.weights[:WINDOW])


def _append(row: Row, tokenizer: Tokenizer, role: str, text: str, asked: list[Asked] | None = None) -> None:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    base = 0.0 if role != "assistant" else ANSWER if asked else CHAT
    weights = [base] * len(encoding.ids)
    for entry in asked or []:
        first = text.find(entry.fact.value) if entry.told else 0
        last = first + len(entry.fact.value) if entry.told else len(text)
        for place, (begin, end) in enumerate(encoding.offsets):
            if begin < last and end > first:
                weights[place] = VALUE
    row.token_ids.extend([SPECIAL_TOKENS.index(f"<|{role}|>"), *encoding.ids, END])
    row.weights.extend([0.0, *weights, base])


def batches(tokenizer: Tokenizer, styles: list[tuple[float, Style]], first: int, tokens: int) -> Iterator[list[Row]]:
    """Batches of at most `tokens` ids, padding included, unless one row is longer; rows of like length meet.

    One call covers 96 dialogues, numbered from `first`, of `styles` in their proportions.
    """
    rng = random.Random(first)
    weights = [weight for weight, _ in styles]
    drawn = rng.choices([style for _, style in styles], weights, k=96)
    rows = sorted((encode(dialogue(first + at, style), tokenizer) for at, style in enumerate(drawn)), key=_length)
    cut: list[list[Row]] = [[]]
    for row in rows:
        if cut[-1] and (len(cut[-1]) + 1) * _length(row) > tokens:
            cut.append([])
        cut[-1].append(row)
    rng.shuffle(cut)
    yield from cut


def _length(row: Row) -> int:
    return len(row.token_ids)
