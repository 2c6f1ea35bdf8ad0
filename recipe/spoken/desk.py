"""The desk is the shop's side of a chat: what it knows so far, and the one right reply to each thing a customer does.

It owns the messages. `customer` decides what happens next and how the customer says it.
"""

import random
import re
from dataclasses import dataclass, field

from models.demo.dialogue import Dialogue, FactAnswer, Message
from models.demo.lexicon import Lang
from models.demo.speech import Fact
from models.demo.wording import attach_particles
from recipe.spoken import lines, orders
from recipe.spoken.orders import Item
from recipe.spoken.shop import Shop

ASSENT = re.compile(r"^(네|안녕하세요|Okay|Got it|Sure|Hello [^,]*|Thanks|Noted), ")
TOLD = (
    *("name", "time", "phone", "address", "budget", "drink", "allergy", "dislike"),
    *("picker", "code", "people", "spice", "companion"),
)


@dataclass(slots=True)
class Desk:
    """One chat. `priced` names each ordered dish as the menu does, where the menu has it."""

    rng: random.Random
    shop: Shop
    facts: dict[str, str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    priced: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    answers: list[FactAnswer] = field(default_factory=list)
    values: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.shop.system:
            self.messages.append({"role": "system", "content": self.shop.system})
        self.values |= {*self.shop.facts.values(), *self.shop.menu, *self.shop.regions}

    def answer(self, said: str, reply: str, right: list[str] | None = None, in_window: bool = True) -> None:
        """One exchange. `right` are the parts of the reply that the chat, the prompt or arithmetic gives."""
        reply = attach_particles(reply)
        for each in right if right is not None else []:
            self.answers.append(FactAnswer(len(self.messages) + 1, Fact("spoken", each), in_window))
        self.messages += [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]

    def heard(self, said: str, told: dict[str, str], lang: Lang) -> None:
        """The customer told facts, and perhaps ordered (`order` in `told`): repeat them, the order first."""
        self.facts.update({kind: value for kind, value in told.items() if kind != "order"})
        self.values |= {value for kind, value in told.items() if kind != "order"}
        replies, right = [], []
        for kind in sorted(told, key=lambda kind: kind != "order"):
            value = orders.repeated(self.items, lang) if kind == "order" else told[kind]
            text = lines.mostly_first(self.rng, f"{kind}.confirm", lang)
            if kind == "name" and len(told) > 1:  # its other confirmations greet, which is for a message of its own
                text = lines.last("name.confirm", lang)
            replies.append(text.replace("{items}" if kind == "order" else "{" + kind + "}", value))
            right.append(value)
        self.answer(said, joined(replies, right), right)

    def changed(self, said: str, items: list[Item], lang: Lang) -> None:
        """The customer changed the order to `items`, which may be none."""
        self.items = items
        if not items:
            return self.answer(said, lines.first("change.cancelled", lang), [])
        text = orders.repeated(items, lang)
        reply = lines.mostly_first(self.rng, "change.confirm", lang).replace("{items}", text)
        return self.answer(said, reply, [text])

    def recall(self, said: str, kind: str, lang: Lang) -> None:
        """The customer asked for a fact of the chat, which may be missing."""
        if kind not in self.facts:
            known = lines.first(f"{kind}.known", lang)
            return self.answer(said, lines.first("untold", lang).replace("{known}", known), [""], in_window=False)
        reply = lines.mostly_first(self.rng, f"{kind}.answer", lang).replace("{" + kind + "}", self.facts[kind])
        return self.answer(said, reply, [self.facts[kind]])

    def state(self, said: str, kind: str, lang: Lang) -> None:
        """The customer asked for a fact of the shop, which may be missing."""
        if kind not in self.shop.facts:
            label = lines.first(f"{kind}.label", lang)
            return self.answer(said, lines.first("absent", lang).replace("{label}", label), [""], in_window=False)
        value = self.shop.facts[kind]
        return self.answer(said, lines.first(f"{kind}.answer", lang).replace("{v}", value), [value])

    def region(self, said: str, region: str, lang: Lang) -> None:
        """The customer asked for the delivery fee of a region."""
        fee = self.shop.regions[region]
        reply = lines.first("region_fee.answer", lang).replace("{region}", region).replace("{v}", fee)
        return self.answer(said, reply, [region, fee])

    def order(self, said: str, lang: Lang, key: str = "order.answer") -> None:
        """The customer asked what was ordered, or how many (`quantity.answer`)."""
        if not self.items:
            return self.answer(said, lines.first("order.none", lang), [""], in_window=False)
        text, count = orders.repeated(self.items, lang), sum(item.number for item in self.items)
        if key == "quantity.answer" and len(self.items) > 1:
            reply = lines.first("quantity_total.answer", lang).replace("{count}", str(count))
            return self.answer(said, reply.replace("{items}", text), [text])
        reply = lines.first(key, lang) if key != "order.answer" else lines.mostly_first(self.rng, key, lang)
        return self.answer(said, reply.replace("{items}", text), [text])

    def one(self, said: str, item: Item, lang: Lang) -> None:
        """The customer asked how many of one dish."""
        text = item.repeated(lang)
        self.answer(said, lines.first("quantity.answer", lang).replace("{items}", text), [text])

    def total(self, said: str, lang: Lang, fee: int = 0) -> None:
        """The customer asked what the order costs."""
        if not self.items:
            return self.answer(said, lines.first("order.none", lang), [""], in_window=False)
        prices = {item.dish: self.shop.menu.get(self.priced.get(item.dish, ""), 0) for item in self.items}
        if not all(prices.values()):
            return self.answer(said, lines.first("total.unpriced", lang), [""], in_window=False)
        reply = attach_particles(orders.total(self.items, prices, self.shop.currency, lang, fee))
        return self.answer(said, reply, [reply.rstrip(".")])

    def price(self, said: str, dish: str, lang: Lang) -> None:
        """The customer asked for the price of a dish, named as on the menu, or in the customer's words if not on it."""
        if dish not in self.shop.menu:
            return self.answer(said, lines.first("price.absent", lang).replace("{dish}", dish), [""], in_window=False)
        text = self.shop.currency.text(self.shop.menu[dish])
        reply = lines.first("price.answer", lang).replace("{dish}", dish).replace("{price}", text)
        return self.answer(said, reply, [dish, text])

    def menu(self, said: str, lang: Lang) -> None:
        """The customer asked what there is."""
        if not self.shop.menu:
            return self.answer(said, lines.first("menu.absent", lang))
        text = ", ".join(f"{dish} {price}" for dish, price in self.shop.written_prices().items())
        return self.answer(said, lines.first("menu.answer", lang).replace("{menu}", text), [text])

    def recommend(self, said: str, lang: Lang) -> None:
        """The customer asked what is good: the special of the day, else the first dish of the menu."""
        if "special" in self.shop.facts:
            return self.state(said, "special", lang)
        if not self.shop.menu:
            return self.answer(said, lines.first("recommend.absent", lang))
        dish, price = next(iter(self.shop.written_prices().items()))
        reply = lines.first("recommend.answer", lang).replace("{dish}", dish).replace("{price}", price)
        return self.answer(said, reply, [dish, price])

    def finish(self) -> Dialogue:
        """The chat as the encoding takes it."""
        values = frozenset(self.values | {item.dish for item in self.items})
        return Dialogue(tuple(self.messages), tuple(self.shop.documents), tuple(self.answers), values)


def joined(replies: list[str], values: list[str]) -> str:
    """Replies in one breath: only the first begins with a word of assent. A value that begins one stays as it is."""
    rest = [ASSENT.sub("", reply) for reply in replies[1:]]
    kept = tuple(values)
    return " ".join([replies[0], *(each if each.startswith(kept) else each[0].upper() + each[1:] for each in rest)])
