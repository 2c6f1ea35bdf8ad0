"""An order and its changes: another dish, another number, one more, one less, none at all. The newest counts."""

from dataclasses import replace

from recipe.spoken import lines, orders, speech
from recipe.spoken.customer import Customer
from recipe.spoken.orders import COUNTS, Item, number_said


def order(customer: Customer) -> None:
    """Order; a second order becomes a change."""
    if customer.desk.items:
        return change(customer)
    if customer.rng.random() < 0.12:
        return _order_apart(customer)
    told = {"order": customer.new_order()}
    said = [speech.filled(lines.pick(customer.rng, "order.tell", customer.lang), told)]
    return customer.desk.heard(customer.say(said), told, customer.lang)


def _order_apart(customer: Customer) -> None:
    """Order a dish and its number in words that stand apart, perhaps with an allergy."""
    item, rng = customer.item(), customer.rng
    customer.desk.items = [item]
    text = lines.pick(rng, "order_apart.tell", customer.lang)
    said = {"dish": customer.counted(item) if item.number > 1 else item.dish}
    said["n"] = number_said(rng, item.number, customer.lang, item.unit)
    told = {"order": said["dish"]}
    if "{allergy}" in text:
        told["allergy"] = said["allergy"] = customer.value("allergy")
    customer.desk.heard(_said(customer, text, said), told, customer.lang)


def change(customer: Customer) -> None:
    """One change of the order; a customer who has not ordered orders."""
    if not customer.desk.items:
        return order(customer)
    kinds = (_replace, _count, _add, _more, _remove, _cancel)
    return customer.rng.choices(kinds, (0.3, 0.3, 0.2, 0.09, 0.09, 0.03))[0](customer)


def _replace(customer: Customer) -> None:
    """Another dish in the place of one: of the same number, or of one that the customer says."""
    items, rng = customer.desk.items, customer.rng
    at = rng.randrange(len(items))
    new = replace(customer.item(), unit=items[at].unit)
    bare = len(items) == 1 and rng.random() < 0.5
    if rng.random() < 0.6:
        new = replace(new, number=items[at].number)
        said = orders.plural(new.dish) if customer.lang == "en" and new.number > 1 else new.dish
    else:
        said = new.said(rng, customer.lang)
        if said == new.dish:
            new = replace(new, number=items[at].number)
    text = lines.pick(rng, "change.replace_bare" if bare else "change.replace", customer.lang)
    told = {"new": said, "old": customer.counted(items[at]) if items[at].number > 1 else items[at].dish}
    customer.desk.changed(_said(customer, text, told), [*items[:at], new, *items[at + 1 :]], customer.lang)


def _count(customer: Customer) -> None:
    items, rng = customer.desk.items, customer.rng
    at = rng.randrange(len(items))
    old = items[at]
    number = rng.choice([count for count in COUNTS if count != old.number])
    bare = len(items) == 1 and rng.random() < 0.65
    text = lines.pick(rng, "change.count_bare" if bare else "change.count", customer.lang)
    many = orders.plural(old.dish) if customer.lang == "en" and number > 1 else old.dish
    told = {"dish": many, "n": number_said(rng, number, customer.lang, old.unit)}
    told["m"] = number_said(rng, old.number, customer.lang, old.unit)
    customer.desk.changed(_said(customer, text, told), orders.changed(items, at, number), customer.lang)


def _add(customer: Customer) -> None:
    if len(customer.desk.items) > 3:
        return _remove(customer)
    new: Item = customer.item()
    text = lines.pick(customer.rng, "change.add", customer.lang)
    said = _said(customer, text, {"order": new.said(customer.rng, customer.lang)})
    return customer.desk.changed(said, [*customer.desk.items, new], customer.lang)


def _more(customer: Customer) -> None:
    """Some more of a dish: the shop says the new number."""
    items, rng = customer.desk.items, customer.rng
    at, more = rng.randrange(len(items)), rng.choice((1, 1, 1, 2, 2, 3))
    old = items[at]
    many = orders.plural(old.dish) if customer.lang == "en" and more > 1 else old.dish
    told = {"dish": many, "n": number_said(rng, more, customer.lang, old.unit)}
    text = lines.pick(rng, "change.more", customer.lang)
    customer.desk.changed(_said(customer, text, told), orders.changed(items, at, old.number + more), customer.lang)


def _remove(customer: Customer) -> None:
    items = customer.desk.items
    if len(items) == 1:
        return _count(customer)
    at = customer.rng.randrange(len(items))
    text = lines.pick(customer.rng, "change.remove", customer.lang)
    dish = customer.counted(items[at]) if items[at].number > 1 else items[at].dish
    return customer.desk.changed(_said(customer, text, {"dish": dish}), orders.changed(items, at, 0), customer.lang)


def _cancel(customer: Customer) -> None:
    customer.desk.changed(customer.plain("change.cancel"), [], customer.lang)


def _said(customer: Customer, text: str, told: dict[str, str]) -> str:
    return customer.say([speech.filled(text, told)], 0.15)
