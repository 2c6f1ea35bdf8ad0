"""This module makes training rows of dialogues: token ids by the chat template, and their weights in the loss."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import Tokenizer

from models.demo.dialogue import Asked, Dialogue
from models.demo.grammar import Style, dialogue
from models.demo.tokenizer import BEGIN, END, SPECIAL_TOKENS, WINDOW

WORD = re.compile(r"[^\W\d]{3,}|[가-힣]{2,}")
SPLIT = 0.08  # share of the words outside values that training sees in two pieces, so that it can read unknown words

# Weights of a value that is asked for, of the answer around it, and of any other reply; UNTOLD that of the whole
# answer where the value was never told.
VALUE, ANSWER, CHAT, UNTOLD = 4.0, 1.0, 0.6, 4.0


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one dialogue and the weight of each as a target."""

    token_ids: list[int]
    weights: list[float]


def encode(dialogue: Dialogue, tokenizer: Tokenizer, rng: random.Random | None = None, untold: float = UNTOLD) -> Row:
    """The row of `dialogue`: system prompt, documents, then the turns, each closed by END; cut to the window.

    With `rng`, some words that are not the assistant's are split (subword regularisation, Kudo, 2018).
    """
    row = Row([BEGIN], [0.0])
    kept = {word for value in dialogue.values for word in value.split()}

    def read(role: str, text: str, asked: list[Asked] | None = None) -> None:
        if rng is None or role == "assistant":
            _append(row, tokenizer, role, [text], asked, untold)
        else:
            _append(row, tokenizer, role, pieces(text, kept, rng))

    start = 1 if dialogue.messages[0]["role"] == "system" else 0
    if start:
        read("system", dialogue.messages[0]["content"])
    for document in dialogue.documents:
        title = document.get("title")
        read("documents", (f"{title}\n" if title else "") + document["text"])
    asked: dict[int, list[Asked]] = {}
    for entry in dialogue.asked:
        asked.setdefault(entry.index, []).append(entry)
    for index in range(start, len(dialogue.messages)):
        message = dialogue.messages[index]
        read(message["role"], message["content"], asked.get(index))
    return Row(row.token_ids[:WINDOW], row.weights[:WINDOW])


def pieces(text: str, kept: set[str], rng: random.Random) -> list[str]:
    """`text` cut inside some words of three letters or more, but none that holds a word of `kept`."""
    cuts = [0]
    for word in WORD.finditer(text):
        if rng.random() < SPLIT and not any(value in word.group() for value in kept):
            cuts.append(rng.randint(word.start() + 1, word.end() - 1))
    return [text[begin:end] for begin, end in pairwise([*cuts, len(text)])]


def _append(
    row: Row,
    tokenizer: Tokenizer,
    role: str,
    parts: list[str],
    asked: list[Asked] | None = None,
    untold: float = UNTOLD,
) -> None:
    """One message of which `parts` are tokenized apart; weights need it in one part."""
    encodings = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    base = 0.0 if role != "assistant" else ANSWER if asked else CHAT
    weights = [base] * sum(len(encoding.ids) for encoding in encodings)
    for entry in asked or []:
        (text,) = parts
        first = text.find(entry.fact.value) if entry.told else 0
        last = first + len(entry.fact.value) if entry.told else len(text)
        for place, (begin, end) in enumerate(encodings[0].offsets):
            if begin < last and end > first:
                weights[place] = VALUE if entry.told else untold
    ids = [token for encoding in encodings for token in encoding.ids]
    row.token_ids.extend([SPECIAL_TOKENS.index(f"<|{role}|>"), *ids, END])
    row.weights.extend([0.0, *weights, base])


def batches(
    tokenizer: Tokenizer, styles: list[tuple[float, Style]], first: int, tokens: int, untold: float = UNTOLD
) -> Iterator[list[Row]]:
    """Batches of at most `tokens` ids, padding included, unless one row is longer; rows of like length meet.

    One call covers 96 dialogues, numbered from `first`, of `styles` in their proportions.
    """
    rng = random.Random(first)
    weights = [weight for weight, _ in styles]
    drawn = rng.choices([style for _, style in styles], weights, k=96)
    made = (encode(dialogue(first + at, style), tokenizer, rng, untold) for at, style in enumerate(drawn))
    rows = sorted(made, key=_length)
    cut: list[list[Row]] = [[]]
    for row in rows:
        if cut[-1] and (len(cut[-1]) + 1) * _length(row) > tokens:
            cut.append([])
        cut[-1].append(row)
    rng.shuffle(cut)
    yield from cut


def _length(row: Row) -> int:
    return len(row.token_ids)
