"""Money is an amount in won or dollars and the way it is written. It knows no dish and no order."""

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from models.demo.lexicon import Lang

SINO = ("", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구", "십")
DOLLARS = {10: "ten", 12: "twelve", 15: "fifteen", 20: "twenty", 25: "twenty-five", 30: "thirty", 35: "thirty-five"}
DOLLARS |= {40: "forty", 45: "forty-five", 50: "fifty", 60: "sixty", 70: "seventy", 75: "seventy-five", 80: "eighty"}

Writing: TypeAlias = Literal["원", "plain 원", "spaced 원", "won", "₩", "$", "dollars", "bare"]


@dataclass(frozen=True, slots=True)
class Currency:
    """How a shop writes its prices. Amounts are integers: won, or cents."""

    writing: Writing

    def text(self, amount: int) -> str:
        """`amount` as this shop writes it."""
        if self.writing in ("$", "dollars"):
            return _dollars(amount, self.writing)
        digits = str(amount) if self.writing == "plain 원" else f"{amount:,}"
        forms = {"bare": digits, "won": f"{digits} won", "₩": f"₩{digits}", "spaced 원": f"{digits} 원"}
        return forms.get(self.writing, f"{digits}원")

    def price(self, rng: random.Random, cheap: bool = False) -> int:
        """A price of a dish, or of a drink or side dish if `cheap`."""
        if self.writing in ("$", "dollars"):
            step = rng.choice((100, 50, 50, 25, 10, 5)) if rng.random() < 0.9 else 1
            low, high = (100, 500) if cheap else (400, 2200)
        else:
            step = rng.choice((1000, 500, 500, 500, 100, 100))
            low, high = (1000, 4500) if cheap else (3500, 19000)
        return step * rng.randint(-(-low // step), high // step)


def _dollars(amount: int, writing: Writing) -> str:
    whole = amount % 100 == 0
    number = str(amount // 100) if whole else f"{amount // 100}.{amount % 100:02d}"
    return f"${number}" if writing == "$" else f"{number} dollars"


def currency(rng: random.Random, korean: bool) -> Currency:
    """A currency as a shop of the language writes it."""
    if korean:
        return Currency(rng.choices(("원", "plain 원", "spaced 원", "bare"), (0.77, 0.15, 0.04, 0.04))[0])
    return Currency(rng.choices(("$", "dollars", "won", "₩", "원", "bare"), (0.58, 0.05, 0.21, 0.05, 0.05, 0.06))[0])


def amount(rng: random.Random, kind: str, lang: Lang, currency: Currency) -> str:
    """A budget, a delivery fee or a minimum order, by `kind`."""
    if kind == "fee" and rng.random() < 0.15:
        return "무료" if lang == "ko" else "free"
    if lang == "ko" and currency.writing.endswith("원"):
        won = rng.randint(1, 12) * 500 if kind == "fee" else rng.randint(5, 100) * 1000
        if won >= 10000 and rng.random() < (0.5 if kind == "budget" else 0.15):
            return _spoken(rng, won)
        return currency.text(won)
    if currency.writing in ("$", "dollars"):
        cents = rng.randint(2, 16) * 50 if kind == "fee" else rng.randint(8, 80) * 100
        if kind == "budget" and rng.random() < 0.4:
            whole = cents // 100
            number = DOLLARS.get(whole, str(whole)) if rng.random() < 0.7 else str(whole)
            return f"{number} {rng.choice(('dollars', 'dollars', 'bucks'))}"
        return currency.text(cents)
    return currency.text(rng.randint(1, 12) * 500 if kind == "fee" else rng.randint(5, 80) * 1000)


def _spoken(rng: random.Random, amount: int) -> str:
    """Won from ten thousand on, as they are said: 3만 5천 원, 만오천원, 이십만 원."""
    tens, thousands = amount // 10000, amount % 10000 // 1000
    if rng.random() < 0.35:
        head = "" if tens == 1 else SINO[tens // 10] * (tens > 19) + "십" * (tens > 9) + SINO[tens % 10]
        tail = ("" if thousands == 1 else SINO[thousands]) + "천" if thousands else ""
        text = f"{head}만{rng.choice(('', ' ')) if tail else ''}{tail}원"
    else:
        text = f"{tens}만 {thousands}천원" if thousands else f"{tens}만원"
    return rng.choice((text, text.replace(" ", ""), text.replace("원", " 원")))
