"""An act is what a customer does in one turn: tell, order, ask, correct, or talk of other things; the desk replies.

Each act is one exchange. An act that cannot be done yet becomes another.
"""

from models.demo import lexicon
from recipe.spoken import lines, speech, values
from recipe.spoken.customer import Customer
from recipe.spoken.desk import TOLD
from recipe.spoken.ordering import order
from recipe.spoken.shop import MAIN, MORE

TALK = lexicon.words(
    """
    greeting thanks bye complaint language who able okay wait praise hungry tired how sorry utensils fresh warm portion
    received chatter request
    """
)
TALK_SHARES = [3, 4, 1, 5, 5, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 1, 2, 3]
FREQUENT = ("name", "time", "phone", "address", "budget", "drink", "allergy", "dislike")


def tell(customer: Customer) -> None:
    """Tell one fact, two of them, or several in one sentence."""
    kinds = [kind for kind in TOLD if kind not in customer.desk.facts]
    shares = [1.0 if kind in FREQUENT else 0.25 for kind in kinds]
    if customer.rng.random() < 0.3:
        return tell_together(customer)
    if not kinds:
        return ask(customer)
    chosen = list(dict.fromkeys(customer.rng.choices(kinds, shares, k=customer.rng.choice((1, 1, 1, 1, 2, 2, 3)))))
    told = {kind: customer.value(kind) for kind in chosen}
    said = [
        speech.filled(lines.pick(customer.rng, f"{kind}.tell", customer.lang), {kind: told[kind]}) for kind in chosen
    ]
    if customer.rng.random() < 0.12 and not customer.desk.items:
        told["order"] = customer.new_order()
        order = speech.filled(lines.pick(customer.rng, "order.tell", customer.lang), told)
        said.insert(customer.rng.choice((0, len(said))), order)
    return customer.desk.heard(customer.say(said, 0.3), told, customer.lang)


def tell_together(customer: Customer) -> None:
    text = lines.pick(customer.rng, "combined.tell", customer.lang)
    kinds = list(dict.fromkeys(lines.places(text)))
    told = {kind: customer.new_order() if kind == "order" else customer.value(kind) for kind in kinds}
    customer.desk.heard(customer.say([speech.filled(text, told)]), told, customer.lang)


def ask(customer: Customer) -> None:
    """Ask for a fact of the chat, by a line of its kind or by its usual noun."""
    known = list(customer.desk.facts)
    if not known:
        return tell(customer) if len(customer.desk.messages) < 24 else off_topic(customer)
    kind = customer.rng.choice(known)
    return customer.desk.recall(customer.question(kind), kind, customer.lang)


def ask_missing(customer: Customer) -> None:
    """Ask for what was never told or stated, also for what nobody tells a shop."""
    if customer.rng.random() < 0.3:
        key, reply = customer.rng.choice((("other.ask", "other.untold"), ("detail.ask", "detail.absent")))
        return customer.desk.answer(customer.plain(key), lines.first(reply, customer.lang), [""], in_window=False)
    if customer.rng.random() < 0.6:
        kinds = [kind for kind in FREQUENT if kind not in customer.desk.facts]
        if kinds:
            kind = customer.rng.choice(kinds)
            return customer.desk.recall(customer.question(kind), kind, customer.lang)
    return ask_unstated(customer)


def ask_unstated(customer: Customer) -> None:
    """Ask for what the shop does not state."""
    kind = customer.rng.choice([kind for kind in (*MAIN, *MAIN, *MORE) if kind not in customer.desk.shop.facts])
    return customer.desk.state(customer.shop_question(kind), kind, customer.lang)


def ask_shop(customer: Customer) -> None:
    """Ask for what the shop states: a fact, or the delivery fee of a region."""
    regions = list(customer.desk.shop.regions)
    if regions and customer.rng.random() < 0.4:
        region = customer.rng.choice(regions)
        return customer.desk.region(customer.plain("region_fee.ask", region=region), region, customer.lang)
    if not customer.desk.shop.facts:
        return talk(customer) if customer.rng.random() < 0.4 else ask_unstated(customer)
    kind = customer.rng.choice(list(customer.desk.shop.facts))
    return customer.desk.state(customer.shop_question(kind), kind, customer.lang)


def ask_order(customer: Customer) -> None:
    """Ask what was ordered or how many."""
    roll = customer.rng.random()
    if roll < 0.55 or not customer.desk.items:
        return customer.desk.order(customer.plain("order.ask"), customer.lang)
    if roll < 0.85:
        return customer.desk.order(customer.plain("quantity.ask"), customer.lang, "quantity.answer")
    item = customer.rng.choice(customer.desk.items)
    return customer.desk.one(customer.plain("quantity_of.ask", dish=customer.counted(item)), item, customer.lang)


def ask_total(customer: Customer) -> None:
    if not customer.desk.items and customer.desk.shop.menu and customer.rng.random() < 0.85:
        return order(customer)
    fee = customer.desk.shop.facts.get("fee", "")
    digits = "".join(char for char in fee if char.isdigit())
    if fee and fee == customer.desk.shop.currency.text(int(digits or 0)) and customer.rng.random() < 0.25:
        return customer.desk.total(customer.plain("total_with_fee.ask"), customer.lang, int(digits))
    return customer.desk.total(customer.plain("total.ask"), customer.lang)


def ask_price(customer: Customer) -> None:
    """Ask for a price, for the menu, or for what is good."""
    rng, menu = customer.rng, customer.desk.shop.menu
    roll = rng.random()
    if roll < 0.15:
        return customer.desk.menu(customer.plain("menu.ask"), customer.lang)
    if roll < 0.25:
        return customer.desk.recommend(customer.plain("recommend.ask"), customer.lang)
    if menu and rng.random() < 0.92:
        name = rng.choice(list(menu))
        return customer.desk.price(customer.plain("price.ask", dish=customer.called(name)), name, customer.lang)
    dish = values.dish(rng, customer.lang)
    if any(dish in other or other in dish for other in menu):
        return off_topic(customer)
    return customer.desk.price(customer.plain("price.ask", dish=dish), dish, customer.lang)


def correct(customer: Customer) -> None:
    """Replace a fact that was told, with or without naming the old one."""
    if not customer.desk.facts:
        return tell(customer)
    kind = customer.rng.choice(list(customer.desk.facts))
    old, new = customer.desk.facts[kind], customer.value(kind)
    if customer.rng.random() < 0.5:
        told = speech.filled(lines.pick(customer.rng, f"{kind}.tell", customer.lang), {kind: new})
        said = lines.pick(customer.rng, "correction.said", customer.lang).replace("{t}", told)
    else:
        text = lines.pick(customer.rng, "correct.value", customer.lang)
        said = speech.filled(text, {"known": customer.known(kind), "v": new, "old": old})
    return customer.desk.heard(customer.say([said], 0.15), {kind: new}, customer.lang)


def off_topic(customer: Customer) -> None:
    said = speech.message(customer.rng, [speech.off_topic(customer.rng, customer.lang)], customer.lang, 0.2)
    customer.desk.answer(said, lines.first("off_topic.reply", customer.lang), [])


def talk(customer: Customer, kind: str = "") -> None:
    kind = kind or customer.rng.choices(TALK, TALK_SHARES)[0]
    reply = lines.mostly_first(customer.rng, f"{kind}.reply", customer.lang)
    said = speech.message(customer.rng, [lines.pick(customer.rng, f"{kind}.said", customer.lang)], customer.lang, 0.12)
    customer.desk.answer(said, reply)
