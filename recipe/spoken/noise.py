"""Noise is what people do to a line when they type it: small letters, lost marks, typos. Values stay whole.

A value stands between MARK and UNMARK until `typed` is done.
"""

import random
import re
from collections.abc import Callable

from models.demo.lexicon import Lang

MARK, UNMARK = "\ue000", "\ue001"
VALUES = re.compile(f"({MARK}[^{UNMARK}]*{UNMARK})")
KOREAN = [
    ("예요", "에요"),
    ("돼", "되"),
    ("했", "햇"),
    ("있", "잇"),
    ("았", "앗"),
    ("습니다", "슴다"),
    ("요", "용"),
    ("요", "여"),
]
KOREAN += [
    ("세요", "세여"),
    ("뭐", "머"),
    ("어떻게", "어케"),
    ("그런데", "근데"),
    ("주세요", "주세영"),
    ("이름", "이릉"),
    ("네", "넹"),
]
KOREAN += [
    ("않", "안"),
    ("됐", "됬"),
    ("얼마", "얼만"),
    ("안녕하세요", "안녕하세여"),
    ("감사합니다", "감사함다"),
    ("거예요", "거에요"),
]
ENGLISH = [
    ("please", "pls"),
    ("you", "u"),
    ("your", "ur"),
    ("are", "r"),
    ("thanks", "thx"),
    ("what is", "whats"),
    ("I'm", "im"),
]
ENGLISH += [
    ("don't", "dont"),
    ("what's", "whats"),
    ("can't", "cant"),
    ("because", "cuz"),
    ("the", "teh"),
    ("want", "wanna"),
]
ENGLISH += [
    ("going to", "gonna"),
    ("I'd like", "id like"),
    ("I will", "ill"),
    ("number", "nr"),
    ("okay", "ok"),
    ("and", "&"),
]
TAILS: dict[Lang, tuple[str, ...]] = {
    "ko": ("~", "!", "!!", "..", "...", "ㅎㅎ", "ㅋㅋ", "ㅠㅠ", " ㅎㅎ", ";;", "^^", ".", "~~", " ㅜㅜ", "요"),
    "en": ("!", "!!", "...", ".", " :)", " haha", "?!", " lol", "..", " ;)"),
}


def typed(rng: random.Random, text: str, lang: Lang) -> str:
    """The line as somebody types it; three lines in ten get one or two changes."""
    if rng.random() < 0.3:
        for _ in range(rng.choice((1, 1, 2))):
            change = rng.choice(CHANGES[lang])
            text = "".join(part if part.startswith(MARK) else change(rng, part) for part in VALUES.split(text))
    if rng.random() < 0.12:
        text = text.rstrip("?!.") + rng.choice(TAILS[lang])
    return text.replace(MARK, "").replace(UNMARK, "").strip()


def _unmarked(rng: random.Random, text: str) -> str:
    return re.sub(r"[.?!,']", "", text)


def _small(rng: random.Random, text: str) -> str:
    return text.lower()


def _unspaced(rng: random.Random, text: str) -> str:
    """One space in two of the inner ones is lost."""
    return re.sub(r"(?<=\S) (?=\S)", lambda _: "" if rng.random() < 0.5 else " ", text)


def _misspelled(pairs: list[tuple[str, str]]) -> Callable[[random.Random, str], str]:
    def change(rng: random.Random, text: str) -> str:
        for right, wrong in rng.sample(pairs, len(pairs) // 2):
            text = re.sub(rf"\b{right}\b", wrong, text) if right.isascii() else text.replace(right, wrong)
        return text

    return change


def _slipped(rng: random.Random, text: str) -> str:
    """One letter of one word is lost, doubled or swapped with the next."""
    places = [at for at in range(1, len(text) - 1) if text[at].isalpha() and text[at + 1].isalpha()]
    if not places:
        return text
    at = rng.choice(places)
    wrong = rng.choice((text[at + 1], text[at] * 2 + text[at + 1], text[at + 1] + text[at]))
    return text[:at] + wrong + text[at + 2 :]


CHANGES: dict[Lang, tuple[Callable[[random.Random, str], str], ...]] = {
    "ko": (_unmarked, _unspaced, _misspelled(KOREAN), _misspelled(KOREAN), _slipped),
    "en": (_unmarked, _small, _small, _misspelled(ENGLISH), _slipped, _slipped),
}
