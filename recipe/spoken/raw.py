"""Raw text of the shop's world: prose and written-down talks, so that text without a chat is continued readably."""

import random

from models.demo.lexicon import Lang
from models.demo.wording import attach_particles
from recipe.spoken import lines, values
from recipe.spoken.chat import chat
from recipe.spoken.money import currency

SPEAKERS: dict[Lang, tuple[str, str]] = {"ko": ("손님", "직원"), "en": ("Guest", "Assistant")}


def passage(seed: int) -> str:
    """The text number `seed`."""
    rng = random.Random(f"raw {seed}")
    lang: Lang = rng.choice(("ko", "en"))
    return _prose(rng, lang) if rng.random() < 0.6 else _talk(rng, seed)


def _prose(rng: random.Random, lang: Lang) -> str:
    """Some sentences of one section in their order, with one person, one dish."""
    money = currency(rng, lang == "ko")
    told = {kind: values.value(rng, kind, lang, money) for kind in ("name", "time", "drink", "shop")}
    told |= {"dish": values.dish(rng, lang), "price": money.text(money.price(rng))}
    section = lines.section(rng.choice(("raw.shop", "raw.day")), lang)
    begin = rng.randrange(len(section) - 3) if rng.random() < 0.5 else 0
    texts = [lines.drawn(rng, line) for line in section[begin:] if rng.random() < 0.8]
    text = " ".join(texts)
    for place, value in told.items():
        text = text.replace("{" + place + "}", value)
    return attach_particles(text)


def _talk(rng: random.Random, seed: int) -> str:
    """A chat written down line by line, or only what one said and the other replied."""
    made = chat(seed + 700_000_000, 4)
    said = [message["content"] for message in made.messages if message["role"] != "system"]
    if rng.random() < 0.5:
        return " ".join(said[:2])
    korean = any("가" <= char <= "힣" for char in said[1])
    names = SPEAKERS["ko" if korean else "en"]
    return "\n".join(f"{names[at % 2]}: {text}" for at, text in enumerate(said))
