"""This module makes training rows of dialogues: token ids by the chat template, and their weights in the loss."""

import random
import re
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import Tokenizer

from models.demo.dialogue import Dialogue, FactAnswer
from recipe.tokenizer import BEGIN, END, SPECIAL_TOKENS, WINDOW

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


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights in the loss: of an answer that says a fact was not told, of replies without a fact."""

    untold: float = UNTOLD
    chat: float = CHAT


def encode(
    dialogue: Dialogue, tokenizer: Tokenizer, rng: random.Random | None = None, weights: Weights | None = None
) -> Row:
    """The row of `dialogue`: system prompt, documents, then the turns, each closed by END; cut to the window.

    With `rng`, some words that are not the assistant's are split (subword regularisation, Kudo, 2018).
    """
    weights = weights or Weights()
    row = Row([BEGIN], [0.0])
    kept = {word for value in dialogue.values for word in value.split()}

    def read(role: str, text: str, answers: list[FactAnswer] | None = None) -> None:
        if rng is None or role == "assistant":
            _append(row, tokenizer, role, [text], answers, weights)
        else:
            _append(row, tokenizer, role, pieces(text, kept, rng))

    start = 1 if dialogue.messages[0]["role"] == "system" else 0
    if start:
        read("system", dialogue.messages[0]["content"])
    for document in dialogue.documents:
        title = document.get("title")
        read("documents", (f"{title}\n" if title else "") + document["text"])
    answers: dict[int, list[FactAnswer]] = {}
    for entry in dialogue.answers:
        answers.setdefault(entry.index, []).append(entry)
    for index in range(start, len(dialogue.messages)):
        message = dialogue.messages[index]
        read(message["role"], message["content"], answers.get(index))
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
    answers: list[FactAnswer] | None = None,
    learned: Weights | None = None,
) -> None:
    """One message of which `parts` are tokenized apart; weights need it in one part."""
    encodings = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    learned = learned or Weights()
    base = 0.0 if role != "assistant" else ANSWER if answers else learned.chat
    weights = [base] * sum(len(encoding.ids) for encoding in encodings)
    for entry in answers or []:
        (text,) = parts
        first = text.find(entry.fact.value) if entry.in_window else 0
        last = first + len(entry.fact.value) if entry.in_window else len(text)
        for place, (begin, end) in enumerate(encodings[0].offsets):
            if begin < last and end > first:
                weights[place] = VALUE if entry.in_window else learned.untold
    ids = [token for encoding in encodings for token in encoding.ids]
    row.token_ids.extend([SPECIAL_TOKENS.index(f"<|{role}|>"), *ids, END])
    row.weights.extend([0.0, *weights, base])


def encode_text(text: str, tokenizer: Tokenizer) -> Row:
    """The row of a text that is no chat: every token counts."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids[: WINDOW - 2]
    return Row([BEGIN, *ids, END], [0.0, *[ANSWER] * len(ids), ANSWER])
