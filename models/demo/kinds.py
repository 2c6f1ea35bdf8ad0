"""A kind of fact has a source, a pool of values and a key in JSON answers. This module lists all kinds."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from models.demo import lexicon
from models.demo.lexicon import Pool

Source: TypeAlias = Literal["guest", "shop", "menu"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fact, by its source.

    guest: told by the user, or noted in the system prompt; shop: in the system prompt or a document; menu: a row of a
    price list, keyed by a dish.
    """

    name: str
    source: Source
    pool: Pool
    key: str


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("name", "guest", lexicon.person, "name"),
        Kind("dish", "guest", lexicon.dish, "order"),
        Kind("quantity", "guest", lexicon.boxes, "quantity"),
        Kind("allergy", "guest", lexicon.food, "allergy"),
        Kind("dislike", "guest", lexicon.food, "dislike"),
        Kind("time", "guest", lexicon.clock, "time"),
        Kind("phone", "guest", lexicon.phone, "phone"),
        Kind("address", "guest", lexicon.address, "address"),
        Kind("budget", "guest", lexicon.money, "budget"),
        Kind("drink", "guest", lexicon.drink, "drink"),
        Kind("code", "guest", lexicon.code, "order_number"),
        Kind("picker", "guest", lexicon.person, "picks_up"),
        Kind("shop", "shop", lexicon.shop, "shop"),
        Kind("open", "shop", lexicon.clock, "opens"),
        Kind("close", "shop", lexicon.clock, "closes"),
        Kind("holiday", "shop", lexicon.day, "closed_on"),
        Kind("special", "shop", lexicon.dish, "special"),
        Kind("fee", "shop", lexicon.money, "delivery_fee"),
        Kind("owner", "shop", lexicon.person, "owner"),
        Kind("parking", "shop", lexicon.address, "parking"),
        Kind("wifi", "shop", lexicon.code, "wifi"),
        Kind("chef", "shop", lexicon.person, "chef"),
        Kind("minutes", "shop", lexicon.count, "minutes"),
        Kind("minimum", "shop", lexicon.money, "minimum"),
        Kind("price", "menu", lexicon.money, "price"),
    )
}
GUEST_KINDS = [name for name, kind in KINDS.items() if kind.source == "guest"]
SHOP_KINDS = [name for name, kind in KINDS.items() if kind.source == "shop"]
