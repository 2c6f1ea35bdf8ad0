"""A customer's message: a line with its values, what stands around it, and the noise of typing.

It knows no dialogue: the caller says which line and which values.
"""

import random
import re

from models.demo.lexicon import Lang, made_up
from models.demo.wording import attach_particles
from recipe.spoken import lines
from recipe.spoken.noise import MARK, UNMARK, typed
from recipe.spoken.words import words

BEHIND = re.compile(f"{UNMARK}(\\([^)]*\\))")
ASIDE = {"animal": "animals", "country": "countries", "city": "cities", "celebrity": "celebrities", "word": "words"}
QUESTIONS: dict[Lang, str] = {"ko": "요까죠나가지야래", "en": ""}


def filled(text: str, told: dict[str, str]) -> str:
    """`text` with its values, marked, and its particles chosen."""
    for place, value in told.items():
        text = text.replace("{" + place + "}", f"{MARK}{value}{UNMARK}")
    return attach_particles(BEHIND.sub(f"\\1{UNMARK}", text))


def message(rng: random.Random, sentences: list[str], lang: Lang, around: float = 0.25) -> str:
    """The sentences as one message; with probability `around` each, an opening, a closing, a sentence beside them."""
    said = _joined(rng, [each for each in sentences if each], lang)
    if rng.random() < around * 0.6:
        beside = lines.pick(rng, "context", lang)
        said = _joined(rng, [beside, said] if rng.random() < 0.6 else [said, beside], lang)
    if rng.random() < around:
        said = f"{_opening(rng, lang)} {said}"
    if rng.random() < around * 0.6 and not said.rstrip().endswith("?"):
        said = said.rstrip(".") + rng.choice((", ", " ", ". ", "! ")) + lines.pick(rng, "closing", lang)
    if lang == "en" and rng.random() < 0.7 and said[0] != MARK:
        said = said[0].upper() + said[1:]
    if said[-1].isalnum() and rng.random() < 0.35:
        said += rng.choice((".", ".", "!"))
    return typed(rng, said, lang)


def _opening(rng: random.Random, lang: Lang) -> str:
    """Words before the point; one in ten is made up, so that words never met do not turn the reply."""
    if rng.random() < 0.1:
        return " ".join(made_up(rng, lang) for _ in range(rng.randint(1, 3))) + rng.choice((",", "", "."))
    return lines.pick(rng, "opening", lang)


def _joined(rng: random.Random, sentences: list[str], lang: Lang) -> str:
    joint = (
        rng.choice((". ", ". ", ", ", " ", "! ", "\n"))
        if lang == "ko"
        else rng.choice((". ", ". ", ", ", " and ", "! "))
    )
    text = sentences[0]
    for each in sentences[1:]:
        text += (" " if text.endswith(("?", "!", ".", "~")) else joint) + each
    return text


def off_topic(rng: random.Random, lang: Lang) -> str:
    """A question that is none of the shop's business."""
    text = lines.pick(rng, "off_topic.said", lang)
    for place in set(lines.places(text)):
        if place in ("a", "b"):
            value = str(rng.randint(1, 9999 if rng.random() < 0.3 else 99))
        else:
            value = rng.choice(words(ASIDE[place], lang)) if rng.random() < 0.85 else made_up(rng, lang)
        text = text.replace("{" + place + "}", value)
    return attach_particles(text)
