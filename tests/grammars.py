"""Schemas, and a vocabulary of bytes and words, for tests of grammars."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from llguidance import LLMatcher

from service.text.grammars import Grammar
from service.text.grammars.matching import VocabularyGrammars

WORDS: Final = (
    '{"',
    '": ',
    '", "',
    '"}',
    "}, ",
    "na",
    "name",
    "me",
    "men",
    "menu",
    "en",
    "count",
    "도시락",
    "도시",
    "불고기",
    "  ",
)
TOKENS: Final = (*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS))
MENUS: Final = ["불고기 도시락", "비빔밥", "김치찌개"]
ORDER: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "menu": {"enum": MENUS},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "name": {"type": "string", "maxLength": 8},
        "extras": {"type": "array", "items": {"enum": ["egg", "kimchi"]}, "maxItems": 3},
        "gift": {"type": "boolean"},
    },
    "required": ["menu", "count", "name", "extras", "gift"],
    "additionalProperties": False,
}
FIELD: Final = "grammar"


def encode(text: bytes, tokens: tuple[bytes, ...] = TOKENS) -> list[int]:
    """Writes a text with the longest token at each place."""
    ids: list[int] = []
    while text:
        longest = max((id for id, each in enumerate(tokens) if text.startswith(each)), key=lambda id: len(tokens[id]))
        ids.append(longest)
        text = text[len(tokens[longest]) :]
    return ids


def decode(ids: Iterable[int]) -> bytes:
    return b"".join(TOKENS[id] for id in ids if id < len(TOKENS))


def vocabulary(size: int = len(TOKENS)) -> VocabularyGrammars:
    """Grammars over TOKENS and, behind them, ids that stand for no text."""
    return VocabularyGrammars.of_tokens([*TOKENS, *[None] * (size - len(TOKENS))], encode)


@cache
def _compiled(grammar: str) -> LLMatcher:
    return _plain().compile(grammar)


@cache
def _plain() -> VocabularyGrammars:
    return vocabulary()


def fits(grammar: Grammar, text: str | bytes) -> bool:
    """Whether a grammar allows exactly this text. Raises ValueError for one that cannot be compiled."""
    matcher = _compiled(grammar.text).deep_copy()
    ids = encode(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting() and not matcher.is_error()


_CLOSING: Final = frozenset(encode(b'"]},:'))


def random_answer(grammar: Grammar, rng: random.Random, most: int = 300) -> str | None:
    """A walk through a grammar, each token drawn from those that are allowed, with a bias to an end. None if it has not
    ended after `most` tokens, or takes too much work. Raises ValueError for a grammar that cannot be compiled."""
    grammars = _plain()
    matcher, ids = grammars.compile(grammar.text), list[int]()
    while not matcher.is_stopped():
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [id for id in range(len(TOKENS)) if bits >> id & 1]
        if (bits >> grammars.end_id & 1) and (not allowed or rng.random() < 0.3):
            break
        closing = [id for id in allowed if id in _CLOSING]
        ids.append(rng.choice(closing if closing and rng.random() < 0.3 else allowed))
        if not matcher.consume_token(ids[-1]) or matcher.is_error() or len(ids) == most:
            return None
    return decode(ids).decode()


def schema(value: Mapping[str, Any]) -> str:
    return Grammar.of_json_schema(dict(value), FIELD).text


def is_order(text: bytes) -> bool:
    """Whether a text is an object that ORDER allows."""
    value = json.loads(text)
    return (
        list(value) == list(ORDER["properties"])
        and value["menu"] in MENUS
        and type(value["count"]) is int
        and 1 <= value["count"] <= 99
        and type(value["name"]) is str
        and len(value["name"]) <= 8
        and set(value["extras"]) <= {"egg", "kimchi"}
        and len(value["extras"]) <= 3
        and type(value["gift"]) is bool
    )
