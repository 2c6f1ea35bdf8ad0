"""Money is an amount in won or dollars and the way it is written. It knows no dish and no order."""

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
