"""An order is dishes and their numbers: as a customer says it, and as the shop repeats it with its sum.

It knows no menu and no dialogue; the caller gives the prices.
"""

import random
from dataclasses import dataclass, replace

from models.demo.lexicon import Lang, words
from models.demo.wording import attach_particles
from recipe.spoken import lines
from recipe.spoken.money import Currency

ALONE = words("하나 둘 셋 넷 다섯 여섯 일곱 여덟 아홉 열 열하나 열둘")
BEFORE = words("한 두 세 네 다섯 여섯 일곱 여덟 아홉 열 열한 열두")
COUNTS = (1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11, 12, 15, 20)
UNITS = ("인분", "세트", "그릇", "줄", "박스", "팩", "통")
PLURALS = ("box", "bowl", "set", "bento", "plate", "lunch box", "combo", "wrap", "roll", "special", "platter", "meal")


@dataclass(frozen=True, slots=True)
class Item:
    """`number` of a dish; `unit` counts it in Korean (개, 인분, 잔)."""

    dish: str
    number: int
    unit: str = "개"

    def said(self, rng: random.Random, lang: Lang) -> str:
        """The item as a customer orders it."""
        return _said_ko(rng, self) if lang == "ko" else _said_en(rng, self)

    def repeated(self, lang: Lang) -> str:
        """The item as the shop repeats it: 돈까스 2개, 2 bulgogi boxes."""
        if lang == "ko":
            return f"{self.dish} {self.number}{self.unit}"
        return f"{self.number} {plural(self.dish) if self.number > 1 else self.dish}"


def plural(dish: str) -> str:
    """The English dish in the plural, where its last word has one."""
    last = dish.lower().split()[-1]
    if last not in {word.split()[-1] for word in PLURALS}:
        return dish
    return dish + ("es" if last == "box" else "s")


def number_said(rng: random.Random, number: int, lang: Lang, unit: str = "개") -> str:
    """A number as a customer says it: 세 개, 3개, three, 3."""
    if lang == "en":
        word = SPELLED.get(number)
        return word if word and rng.random() < 0.6 else str(number)
    if number <= len(BEFORE) and rng.random() < 0.55:
        spoken = f"{BEFORE[number - 1]} {unit}"
        return ALONE[number - 1] if unit == "개" and rng.random() < 0.3 else spoken
    return f"{number}{unit}" if rng.random() < 0.85 else f"{number} {unit}"


SPELLED = {at + 1: word for at, word in enumerate(words("one two three four five six seven eight nine ten"))}
SPELLED |= {11: "eleven", 12: "twelve", 15: "fifteen", 20: "twenty"}


def _said_ko(rng: random.Random, item: Item) -> str:
    if item.number == 1 and rng.random() < 0.25:
        return item.dish
    text = number_said(rng, item.number, "ko", item.unit)
    if item.unit == "개" and rng.random() < 0.06:
        text = rng.choice((f"{item.number}명분", f"{item.number}인분", f"총 {text}", f"딱 {text}"))
        if "인분" in text or "명분" in text:
            return f"{item.dish} {text}"
    if item.unit == "개" and rng.random() < 0.04:
        text = str(item.number)
    if rng.random() < 0.08:
        return f"{item.dish}{text}"
    if rng.random() < 0.08:
        return attach_particles(f"{item.dish}(으/로) {text}") if rng.random() < 0.6 else f"{item.dish}, {text}"
    return f"{item.dish} {text}" if rng.random() < 0.93 else f"{text} {item.dish}".replace("하나", "한 개")


def _said_en(rng: random.Random, item: Item) -> str:
    if item.number == 1:
        article = "an" if item.dish[0].lower() in "aeiou" else "a"
        if rng.random() < 0.06:
            return f"{item.dish}, {rng.choice(('just the one', 'just one', 'one of those'))}"
        return rng.choice(
            (f"{article} {item.dish}", f"one {item.dish}", f"1 {item.dish}", f"the {item.dish}", item.dish)
        )
    if item.number in (2, 12) and rng.random() < 0.1:
        return f"a {'couple of' if item.number == 2 else 'dozen'} {plural(item.dish)}"
    text = number_said(rng, item.number, "en")
    if rng.random() < 0.08:
        tail = (f", {text} of them", f", {text} of em", f", {text}", f" - {text}", f" times {text}", f", {text} please")
        return plural(item.dish) + rng.choice(tail)
    if plural(item.dish) == item.dish and rng.random() < 0.35:
        return (
            f"{text} {rng.choice(('orders of', 'portions of', 'servings of', 'plates of', 'x', 'of the'))} {item.dish}"
        )
    return rng.choice(
        (f"{text} {plural(item.dish)}",) * 6 + (f"{item.number}x {item.dish}", f"{item.dish} x{item.number}")
    )


def said(rng: random.Random, items: list[Item], lang: Lang) -> str:
    """Several items in one breath."""
    texts = [item.said(rng, lang) for item in items]
    if len(texts) == 1:
        return texts[0]
    if len(texts) == 2 and rng.random() < 0.07:
        return _shared(rng, texts, lang)
    if lang == "en":
        last = rng.choice((" and ", " and ", " and ", ", and ", " plus ", " & ", ", ", " with "))
        return ", ".join(texts[:-1]) + last + texts[-1]
    joint = rng.choice(
        ("(이)랑 ", "(이)랑 ", "하고 ", ", ", ", ", "(과/와) ", " 그리고 ", "에 ", " ", "(이)랑요 ", ", 그리고 ")
    )
    return joint.join(texts)


def _shared(rng: random.Random, texts: list[str], lang: Lang) -> str:
    """Two items, one for the customer and one for somebody else."""
    if lang == "ko":
        return f"제 건 {texts[0]}, {rng.choice(('친구', '동료', '남편', '아내', '아이'))} 건 {texts[1]}"
    return f"{texts[0]} for me and {texts[1]} for my {rng.choice(('dad', 'mum', 'friend', 'boss', 'wife', 'son'))}"


def repeated(items: list[Item], lang: Lang) -> str:
    """The whole order as the shop repeats it."""
    texts = [item.repeated(lang) for item in items]
    if lang == "en" and len(texts) > 1:
        return ", ".join(texts[:-1]) + " and " + texts[-1]
    return ", ".join(texts)


def total(items: list[Item], prices: dict[str, int], currency: Currency, lang: Lang, fee: int = 0) -> str:
    """What the shop answers to "how much is it?"; `prices` has a price for each dish. Particles are not chosen yet."""
    parts = [item.number * prices[item.dish] for item in items]
    amount = currency.text(sum(parts) + fee)
    if len(items) == 1 and not fee:
        unit = currency.text(prices[items[0].dish])
        key = "total.same" if items[0].number == 1 else "total.one"
        return _reply(key, lang, n=str(items[0].number), unit=unit, sum=amount)
    rows = [
        _reply(
            "total.row",
            lang,
            dish=item.dish,
            n=str(item.number),
            unit=currency.text(prices[item.dish]),
            part=currency.text(part),
        )
        for item, part in zip(items, parts, strict=True)
    ]
    if fee:
        rows.append(_reply("total.fee", lang, fee=currency.text(fee)))
    return _reply("total.sum", lang, rows=", ".join(rows), sum=amount)


def _reply(key: str, lang: Lang, **values: str) -> str:
    text = lines.first(key, lang)
    for place, value in values.items():
        text = text.replace("{" + place + "}", value)
    return text


def changed(items: list[Item], at: int, number: int) -> list[Item]:
    """The items with another number of one of them; none of it if the number is 0."""
    kept = [*items[:at], replace(items[at], number=number), *items[at + 1 :]]
    return [item for item in kept if item.number]
