"""A customer: the language, what is known at the desk, and how a value, a dish or an order is said.

It knows how to say things, not what happens next: that is for `acts`, `changes` and `chat`.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache

from models.demo.lexicon import Lang
from recipe.spoken import lines, orders, speech, values
from recipe.spoken.desk import Desk
from recipe.spoken.orders import COUNTS, UNITS, Item
from recipe.spoken.words import words

TRIES = 100
OWN = {"your ": "my ", "you dislike": "I dislike", "you want": "I want"}


@cache
def lowered(key: str, lang: Lang) -> frozenset[str]:
    """The words of a list in small letters."""
    return frozenset(word.lower() for word in words(key, lang))


def apart(draw: Callable[[], str], known: Collection[str]) -> str:
    """A drawn word that holds none of the known ones, and is held by none; after TRIES draws any: a shop's word "pe" is
    in every number of people."""
    for _ in range(TRIES):
        found = draw()
        if not any(found in other or other in found for other in known):
            break
    return found


@dataclass(slots=True)
class Customer:
    """Says things at a desk, in the language that the customer has at the moment."""

    rng: random.Random
    desk: Desk
    lang: Lang

    def say(self, sentences: list[str], around: float = 0.25) -> str:
        return speech.message(self.rng, sentences, self.lang, around)

    def plain(self, key: str, **told: str) -> str:
        """A message of one line of the section."""
        return self.say([speech.filled(lines.pick(self.rng, key, self.lang), told)])

    def value(self, kind: str) -> str:
        """A value that cannot be taken for a known one."""
        return apart(lambda: values.value(self.rng, kind, self.lang, self.desk.shop.currency), self.desk.values)

    def new_order(self) -> str:
        """Begin a new order; returns it as said."""
        count = self.rng.choice((1, 1, 1, 1, 1, 2, 2, 2, 3))
        self.desk.items = []
        for _ in range(count):
            self.desk.items.append(self.item())
        return orders.said(self.rng, self.desk.items, self.lang)

    def item(self) -> Item:
        """A dish that is not in the order yet, mostly from the menu, mostly as the menu names it."""
        rng, menu = self.rng, self.desk.shop.menu
        held = {item.dish for item in self.desk.items}
        taken = {self.desk.priced.get(dish, "") for dish in held}
        free = [dish for dish in menu if dish not in taken]
        number, unit = rng.choice(COUNTS), rng.choice(UNITS) if rng.random() < 0.1 else "개"
        if free and rng.random() < 0.93:
            name = rng.choice(free)
            called = self.called(name)
            self.desk.priced[called] = name
            return Item(called, number, unit)
        dish = apart(
            lambda: values.dish(rng, self.lang) if rng.random() < 0.85 else values.drink(rng, self.lang),
            held | set(menu),
        )
        return Item(dish, number, unit)

    def called(self, name: str) -> str:
        """How the customer calls a dish of the menu: in full, in small letters, or without what only describes it."""
        short = self.shortened(name)
        unique = short and sum(short.lower() in dish.lower() for dish in self.desk.shop.menu) == 1
        name = short if unique and self.rng.random() < 0.35 else name
        return name.lower() if name.isascii() and self.rng.random() < 0.6 else name

    def shortened(self, name: str) -> str:
        """The dish without the word for its form (box, 도시락) or without its first word, if that describes it."""
        head, _, rest = name.partition(" ")
        start, _, last = name.rpartition(" ")
        if rest and head.lower() in lowered("dish_modifiers", self.lang) and self.rng.random() < 0.5:
            return rest
        if start and last.lower() in lowered("dish_styles", self.lang):
            return start
        return name.removesuffix("도시락").strip()

    def question(self, kind: str) -> str:
        if self.rng.random() < 0.8:
            return self.plain(f"{kind}.ask")
        return self.plain("known.ask", known=self.known(kind))

    def known(self, kind: str) -> str:
        """The noun of a fact as its owner says it."""
        noun = lines.first(f"{kind}.known", self.lang)
        for yours, mine in OWN.items():
            noun = noun.replace(yours, mine)
        return noun if self.lang == "en" or self.rng.random() < 0.6 else f"제 {noun}"

    def shop_question(self, kind: str) -> str:
        if self.rng.random() < 0.88:
            return self.plain(f"{kind}.ask")
        return self.plain("label.ask", label=lines.pick(self.rng, f"{kind}.label", self.lang))

    def counted(self, item: Item) -> str:
        return orders.plural(item.dish) if self.lang == "en" else item.dish
