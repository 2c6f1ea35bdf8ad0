"""The customer decides what happens next in a chat and says it; the desk replies.

`chat(seed)` is a pure function: the same number gives the same chat on every machine.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from models.demo.dialogue import Dialogue
from models.demo.lexicon import Lang
from models.demo.spoken import lines, orders, speech, values
from models.demo.spoken.desk import TOLD, Desk
from models.demo.spoken.orders import COUNTS, UNITS, Item
from models.demo.spoken.shop import MAIN, MORE, shop
from models.demo.spoken.words import words

TALK = "greeting thanks bye complaint language who able okay wait praise hungry tired how sorry utensils fresh".split()
TALK += "warm portion received chatter request".split()
TALK_SHARES = [3, 4, 1, 5, 5, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 1, 2, 3]
FREQUENT = ("name", "time", "phone", "address", "budget", "drink", "allergy", "dislike")
PLURAL = {"your ": "my ", "you dislike": "I dislike", "you want": "I want"}


def chat(seed: int, most: int = 18) -> Dialogue:
    """The chat number `seed`, of at most `most` turns and a greeting."""
    rng = random.Random(f"spoken {seed}")
    first: Lang = rng.choice(("ko", "en"))
    other: Lang = "en" if first == "ko" else "ko"
    written: Lang = first if rng.random() < 0.88 else other
    turns = min(most, rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 14, 18)))
    switch = rng.randint(1, turns) if rng.random() < 0.14 else turns + 1
    customer = Customer(rng, Desk(rng, shop(rng, written)), first)
    if rng.random() < 0.35:
        customer.talk("greeting")
    for at in range(turns):
        customer.lang = first if at < switch else other
        customer.turn()
    return customer.desk.finish()


@cache
def lowered(key: str, lang: Lang) -> frozenset[str]:
    """The words of a list in small letters."""
    return frozenset(word.lower() for word in words(key, lang))


@dataclass(slots=True)
class Customer:
    """Plays one customer. `wanted` are the facts to be told, soonest last."""

    rng: random.Random
    desk: Desk
    lang: Lang
    wanted: list[str] = field(default_factory=list)

    def turn(self) -> None:
        """One exchange; what cannot be done yet becomes a telling."""
        actions: list[tuple[float, Callable[[], None]]] = [
            (0.17, self.tell),
            (0.10, self.order),
            (0.20, self.ask),
            (0.09, self.ask_shop),
            (0.06, self.ask_order),
            (0.09, self.ask_total),
            (0.06, self.change),
            (0.035, self.correct),
            (0.05, self.ask_price),
            (0.035, self.ask_missing),
            (0.10, self.off_topic),
            (0.13, self.talk),
        ]
        self.rng.choices([action for _, action in actions], [share for share, _ in actions])[0]()

    def say(self, sentences: list[str], around: float = 0.25) -> str:
        return speech.message(self.rng, sentences, self.lang, around)

    def plain(self, key: str, **told: str) -> str:
        """A message of one line of the section."""
        return self.say([speech.filled(lines.pick(self.rng, key, self.lang), told)])

    def tell(self) -> None:
        """Tell one fact, two of them, or several in one sentence."""
        kinds = [kind for kind in TOLD if kind not in self.desk.facts]
        shares = [1.0 if kind in FREQUENT else 0.25 for kind in kinds]
        if self.rng.random() < 0.3:
            return self.tell_together()
        if not kinds:
            return self.ask()
        chosen = list(dict.fromkeys(self.rng.choices(kinds, shares, k=self.rng.choice((1, 1, 1, 1, 2, 2, 3)))))
        told = {kind: self.value(kind) for kind in chosen}
        said = [speech.filled(lines.pick(self.rng, f"{kind}.tell", self.lang), {kind: told[kind]}) for kind in chosen]
        if self.rng.random() < 0.12 and not self.desk.items:
            told["order"] = self.new_order()
            order = speech.filled(lines.pick(self.rng, "order.tell", self.lang), told)
            said.insert(self.rng.choice((0, len(said))), order)
        return self.desk.heard(self.say(said, 0.3), told, self.lang)

    def tell_together(self) -> None:
        text = lines.pick(self.rng, "combined.tell", self.lang)
        kinds = list(dict.fromkeys(lines.places(text)))
        told = {kind: self.new_order() if kind == "order" else self.value(kind) for kind in kinds}
        self.desk.heard(self.say([speech.filled(text, told)]), told, self.lang)

    def value(self, kind: str) -> str:
        while True:
            found = values.value(self.rng, kind, self.lang, self.desk.shop.currency)
            if not any(found in other or other in found for other in self.desk.values):
                return found

    def order(self) -> None:
        """Order; a second order becomes a change."""
        if self.desk.items:
            return self.change()
        told = {"order": self.new_order()}
        said = [speech.filled(lines.pick(self.rng, "order.tell", self.lang), told)]
        return self.desk.heard(self.say(said), told, self.lang)

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
        while True:
            dish = values.dish(rng, self.lang) if rng.random() < 0.85 else values.drink(rng, self.lang)
            if not any(dish in other or other in dish for other in held | set(menu)):
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

    def ask(self) -> None:
        """Ask for a fact of the chat, by a line of its kind or by its usual noun."""
        known = list(self.desk.facts)
        if not known:
            return self.tell() if len(self.desk.messages) < 24 else self.off_topic()
        kind = self.rng.choice(known)
        return self.desk.recall(self.question(kind), kind, self.lang)

    def question(self, kind: str) -> str:
        if self.rng.random() < 0.8:
            return self.plain(f"{kind}.ask")
        return self.plain("known.ask", known=self.known(kind))

    def known(self, kind: str) -> str:
        """The noun of a fact as its owner says it."""
        noun = lines.first(f"{kind}.known", self.lang)
        for shop, mine in PLURAL.items():
            noun = noun.replace(shop, mine)
        return noun if self.lang == "en" or self.rng.random() < 0.6 else f"제 {noun}"

    def ask_missing(self) -> None:
        """Ask for what was never told or stated, also for what nobody tells a shop."""
        if self.rng.random() < 0.3:
            key, reply = self.rng.choice((("other.ask", "other.untold"), ("detail.ask", "detail.absent")))
            return self.desk.answer(self.plain(key), lines.first(reply, self.lang), [""], told=False)
        if self.rng.random() < 0.6:
            kinds = [kind for kind in FREQUENT if kind not in self.desk.facts]
            if kinds:
                kind = self.rng.choice(kinds)
                return self.desk.recall(self.question(kind), kind, self.lang)
        kind = self.rng.choice([kind for kind in (*MAIN, *MAIN, *MORE) if kind not in self.desk.shop.facts])
        return self.desk.state(self.shop_question(kind), kind, self.lang)

    def ask_shop(self) -> None:
        if not self.desk.shop.facts:
            return self.talk() if self.rng.random() < 0.7 else self.ask_missing()
        kind = self.rng.choice(list(self.desk.shop.facts))
        return self.desk.state(self.shop_question(kind), kind, self.lang)

    def shop_question(self, kind: str) -> str:
        if self.rng.random() < 0.88:
            return self.plain(f"{kind}.ask")
        return self.plain("label.ask", label=lines.pick(self.rng, f"{kind}.label", self.lang))

    def ask_order(self) -> None:
        """Ask what was ordered or how many."""
        roll = self.rng.random()
        if roll < 0.55 or not self.desk.items:
            return self.desk.order(self.plain("order.ask"), self.lang)
        if roll < 0.85:
            return self.desk.order(self.plain("quantity.ask"), self.lang, "quantity.answer")
        item = self.rng.choice(self.desk.items)
        return self.desk.one(self.plain("quantity_of.ask", dish=self.counted(item)), item, self.lang)

    def counted(self, item: Item) -> str:
        return orders.plural(item.dish) if self.lang == "en" else item.dish

    def ask_total(self) -> None:
        if not self.desk.items and self.desk.shop.menu and self.rng.random() < 0.85:
            return self.order()
        fee = self.desk.shop.facts.get("fee", "")
        digits = "".join(char for char in fee if char.isdigit())
        if fee and fee == self.fee_text(int(digits or 0)) and self.rng.random() < 0.25:
            return self.desk.total(self.plain("total_with_fee.ask"), self.lang, int(digits))
        return self.desk.total(self.plain("total.ask"), self.lang)

    def fee_text(self, amount: int) -> str:
        return self.desk.shop.currency.text(amount)

    def ask_price(self) -> None:
        """Ask for a price, for the menu, or for what is good."""
        rng, menu = self.rng, self.desk.shop.menu
        roll = rng.random()
        if roll < 0.15:
            return self.desk.menu(self.plain("menu.ask"), self.lang)
        if roll < 0.25:
            return self.desk.recommend(self.plain("recommend.ask"), self.lang)
        if menu and rng.random() < 0.92:
            name = rng.choice(list(menu))
            return self.desk.price(self.plain("price.ask", dish=self.called(name)), name, self.lang)
        dish = values.dish(rng, self.lang)
        if any(dish in other or other in dish for other in menu):
            return self.off_topic()
        return self.desk.price(self.plain("price.ask", dish=dish), dish, self.lang)

    def correct(self) -> None:
        """Replace a fact that was told, with or without naming the old one."""
        if not self.desk.facts:
            return self.tell()
        kind = self.rng.choice(list(self.desk.facts))
        old, new = self.desk.facts[kind], self.value(kind)
        if self.rng.random() < 0.5:
            tell = speech.filled(lines.pick(self.rng, f"{kind}.tell", self.lang), {kind: new})
            said = lines.pick(self.rng, "correction.said", self.lang).replace("{t}", tell)
        else:
            text = lines.pick(self.rng, "correct.value", self.lang)
            said = speech.filled(text, {"known": self.known(kind), "v": new, "old": old})
        return self.desk.heard(self.say([said], 0.15), {kind: new}, self.lang)

    def change(self) -> None:
        if not self.desk.items:
            return self.order()
        from models.demo.spoken.changes import change

        return change(self)

    def off_topic(self) -> None:
        said = speech.message(self.rng, [speech.off_topic(self.rng, self.lang)], self.lang, 0.2)
        self.desk.answer(said, lines.first("off_topic.reply", self.lang), [])

    def talk(self, kind: str = "") -> None:
        kind = kind or self.rng.choices(TALK, TALK_SHARES)[0]
        reply = lines.mostly_first(self.rng, f"{kind}.reply", self.lang)
        said = speech.message(self.rng, [lines.pick(self.rng, f"{kind}.said", self.lang)], self.lang, 0.12)
        self.desk.answer(said, reply)
