"""A wording holds the ways to tell, ask and answer one kind of fact. This module also chooses Korean particles.

It knows no sentence itself; the tables of sentences are `wordings_en` and `wordings_ko`.
"""

import random
import re
from dataclasses import dataclass

from models.demo.lexicon import Split

PARTICLES = re.compile(
    r"(.?)\((은|이에|이고요|이고|이었|인데요|인데|이랑|이라고|이|을|으|과)(?:/(는|예|고요|고|였|인데요|인데|랑|라고|가|를|로|와))?\)"
)


@dataclass(frozen=True, slots=True)
class Wording:
    """Alternatives separated by "|"; one that begins with "*" is held out. {v} is the value, {k} the key of a price.

    nouns: noun phrases for the fact; tells: statements; asks: questions; known: the noun phrase as the assistant says
    it; answer: the one answer.
    """

    nouns: str
    tells: str
    asks: str
    known: str
    answer: str


@dataclass(frozen=True, slots=True)
class Fillers:
    """The texts that all kinds share: frames around a noun phrase {n}, corrections of a statement {t}, stock
    replies."""

    tell_frames: str
    ask_frames: str
    corrections: str
    openings: str
    closers: str
    json: str
    acks: str
    echo: str
    orders: str
    untold: str
    absent: str


def options(text: str, split: Split) -> list[str]:
    """The alternatives of `text` that belong to `split`, without their mark."""
    parts = text.split("|")
    if split == "train":
        return [part for part in parts if not part.startswith("*")]
    return [part[1:] for part in parts if part.startswith("*")]


def pick(rng: random.Random, text: str, split: Split = "train") -> str:
    """One alternative of `text` that belongs to `split`."""
    return rng.choice(options(text, split))


def attach_particles(text: str) -> str:
    """Resolve every (은/는), (이/가), (을/를), (으/로), (이에/예), (이) and the like by the sound before it.

    A Latin letter counts as ending in a vowel, a digit as it is read.
    """
    return PARTICLES.sub(_particle, text)


def _particle(match: re.Match[str]) -> str:
    before, closed, opened = match.groups()
    final = _final(before)
    if closed == "으":
        return before + ("로" if final in ("", "ㄹ") else "으로")
    return before + (closed if final else opened or "")


def _final(char: str) -> str:
    """The final consonant of `char`: "" for none, "ㄹ" for rieul, "x" for any other."""
    if "가" <= char <= "힣":
        index = (ord(char) - 0xAC00) % 28
        return {0: "", 8: "ㄹ"}.get(index, "x")
    if char and char in "178":
        return "ㄹ"
    return "x" if char and char in "036" else ""
