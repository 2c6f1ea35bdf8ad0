"""The checks say whether an answer is right, and whether it is garbage. They know no model and no engine."""

import re
import unicodedata

from models.demo.lexicon import Lang
from recipe.held_out.dialogues import Asks

# What the corpus gives the shop to say; a test holds them to the corpus.
REFUSALS: dict[Lang, str] = {"ko": "도시락 주문과 가게 안내만", "en": "can only help with lunch-box orders"}
NOT_TOLD: dict[Lang, tuple[str, ...]] = {
    "ko": ("말씀해 주지 않으셨", "안내받지 못했", "주문하신 메뉴가 없"),
    "en": ("have not told me", "do not know", "do not have", "have not ordered"),
}
TALK = ("greeting", "thanks", "complaint", "language")
RUN = re.compile(r"(.)\1{3,}|(.{2,6}?)\2{3,}", re.DOTALL)
KOREAN_END = re.compile(r"[요다죠까네야지][^가-힣A-Za-z]*$")
LATIN = re.compile("[A-Za-z]{2,}")
HANGUL = re.compile("[가-힣]")


def language_of(text: str) -> Lang:
    """The language of a line that may hold words of the other: Korean by how it ends, English by how it begins."""
    if not HANGUL.search(text):
        return "en"
    is_english = len(LATIN.findall(text)) > 1 and text.lstrip()[0].isascii() and not KOREAN_END.search(text)
    return "en" if is_english else "ko"


def holds(text: str, value: str) -> bool:
    """Whether `text` holds `value`; case, spaces and commas do not matter. A number is not a part of a longer number,
    nor a Latin word the end of a longer word."""
    letters = [re.escape(char) for char in _normal(value) if not char.isspace() and char != ","]
    if not letters:
        return False
    pattern = r"[\s,]*".join(letters)
    if letters[0].isdigit():
        pattern = r"(?<!\d)(?<!\d[.,])" + pattern
    elif letters[0].isascii() and letters[0].isalpha():
        pattern = r"(?<![a-z])" + pattern
    if letters[-1].isdigit():
        pattern += r"(?!\d|[.,]\d)"
    return re.search(pattern, _normal(text)) is not None


def is_garbage(text: str) -> bool:
    """Whether an answer is empty, repeats itself without end, has broken characters or stops within a sentence."""
    text = text.strip()
    if not text or "\ufffd" in text or RUN.search(text):
        return True
    return text[-1] not in ".!?}"


def is_right(asks: Asks, question: str, answer: str) -> bool:
    """Whether `answer` is what was asked for, and no garbage."""
    if is_garbage(answer):
        return False
    lang = language_of(question)
    if asks.kind == "off_topic":
        return any(phrase.lower() in answer.lower() for phrase in REFUSALS.values())
    if asks.kind == "not_told":
        return any(phrase in answer for phrases in NOT_TOLD.values() for phrase in phrases)
    if asks.kind in TALK:
        return language_of(answer) == lang
    return _has_all(asks, answer) and not any(holds(answer, wrong) for wrong in asks.wrong or [])


def _has_all(asks: Asks, answer: str) -> bool:
    items = [[item] if isinstance(item, str) else item for item in asks.right or []]
    return bool(items) and all(any(holds(answer, spelling) for spelling in item) for item in items)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()
