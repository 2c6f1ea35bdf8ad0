"""A shop: what its owner wrote into the system prompt and documents, and the prices on its menu.

The same facts are written in many shapes: prose, lines with labels, bullets, comma lists. It knows no customer.
"""

import random
from dataclasses import dataclass, field

from models.demo.lexicon import Lang
from models.demo.wording import attach_particles
from recipe.spoken import lines, places, values
from recipe.spoken.money import Currency, currency

MAIN = ("shop", "hours", "closing", "special", "fee", "owner", "parking", "wifi", "chef", "delivery_time", "minimum")
MORE: tuple[str, ...] = (
    "shop_phone",
    "shop_address",
    "payment",
    "restroom",
    "seats",
    "discount",
    "soup",
    "side",
    "origin",
    "area",
)
MORE += ("reservation", "break", "refund")
BULLETS = ("- ", "• ", "* ", "", "", "· ", "– ")


@dataclass(slots=True)
class Shop:
    """Facts by kind, prices by dish as the menu names it, delivery fees by region, and what was written of them."""

    lang: Lang
    currency: Currency
    facts: dict[str, str] = field(default_factory=dict)
    menu: dict[str, int] = field(default_factory=dict)
    system: str = ""
    documents: list[dict[str, str]] = field(default_factory=list)
    regions: dict[str, str] = field(default_factory=dict)

    def written_prices(self) -> dict[str, str]:
        return {dish: self.currency.text(price) for dish, price in self.menu.items()}


def shop(rng: random.Random, lang: Lang, silent: float) -> Shop:
    """A shop that states some facts in its system prompt or in documents; `silent` is the probability of one that
    writes nothing."""
    made = Shop(lang, currency(rng, lang == "ko"))
    if rng.random() < silent:
        return made
    kinds = rng.sample(MAIN, rng.choice((0, 1, 2, 3, 3, 4, 5, 6, 8, 10))) + rng.sample(
        MORE, rng.choice((0, 0, 0, 1, 2, 3))
    )
    rng.shuffle(kinds)
    made.facts = {kind: values.value(rng, kind, lang, made.currency) for kind in kinds}
    if rng.random() < 0.62:
        made.menu = _menu(rng, lang, made.currency)
    if rng.random() < 0.06:
        names = [places.region(rng, lang) for _ in range(rng.randint(2, 3))]
        made.regions = {name: values.value(rng, "fee", lang, made.currency) for name in names}
    _write(rng, made)
    return made


def _menu(rng: random.Random, lang: Lang, money: Currency) -> dict[str, int]:
    """Dishes with different first words, and perhaps drinks."""
    menu: dict[str, int] = {}
    heads: set[str] = set()
    titled = lang == "en" and rng.random() < 0.4
    for at in range(rng.choice((2, 3, 3, 4, 4, 5, 6, 8))):
        cheap = at > 1 and rng.random() < 0.25
        name = values.drink(rng, lang) if cheap else values.dish(rng, lang)
        name = name.title() if titled else name
        if not heads & set(name.lower().split()) and not any(name in other or other in name for other in menu):
            heads |= set(name.lower().split()[:-1] or [name.lower()])
            menu[name] = money.price(rng, cheap)
    return menu


def _write(rng: random.Random, made: Shop) -> None:
    """Divide facts and menu between the system prompt and documents."""
    kinds = list(made.facts)
    cut = rng.randint(0, len(kinds)) if rng.random() < 0.3 else len(kinds)
    menu_apart = bool(made.menu) and rng.random() < 0.25
    blocks = [_facts(rng, made, kinds[:cut])] if kinds[:cut] else []
    if made.menu and not menu_apart:
        blocks.insert(rng.randint(0, len(blocks)), _prices(rng, made))
    if made.regions and rng.random() < 0.5:
        blocks.append(_regions(rng, made))
    elif made.regions:
        made.documents.append(_document(rng, made, _regions(rng, made), "title"))
    persona = [_sentence(lines.pick(rng, "persona", made.lang)) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    joint = rng.choice((" ", "\n", "\n", "\n\n"))
    made.system = joint.join([*([" ".join(persona)] if persona else []), *blocks])
    if kinds[cut:]:
        made.documents.append(_document(rng, made, _facts(rng, made, kinds[cut:], True), "title"))
    if menu_apart:
        made.documents.append(_document(rng, made, _prices(rng, made), "menu_title"))
    rng.shuffle(made.documents)


def _regions(rng: random.Random, made: Shop) -> str:
    """The delivery fee of each region."""
    line = lines.pick(rng, "region_fee.line", made.lang)
    rows = [line.replace("{region}", region).replace("{v}", fee) for region, fee in made.regions.items()]
    return rng.choice((" ", "\n")).join(_sentence(attach_particles(row)) for row in rows)


def _document(rng: random.Random, made: Shop, text: str, title: str) -> dict[str, str]:
    entry = {"title": lines.pick(rng, title, made.lang)} if rng.random() < 0.85 else {}
    return {**entry, "text": text}


def _facts(rng: random.Random, made: Shop, kinds: list[str], notice: bool = False) -> str:
    """The facts in one of the shapes that owners use."""
    lang, shape = made.lang, rng.random()
    if shape < 0.4:
        texts = [_prose(rng, made, kind) for kind in kinds]
        for _ in range(rng.choice((0, 1, 2)) if notice else rng.choice((0, 0, 0, 1))):
            texts.insert(rng.randint(0, len(texts)), _sentence(lines.pick(rng, "notice_prose", lang)))
        return rng.choice((" ", " ", "\n")).join(texts)
    colon = rng.choice((": ", ": ", ": ", " - ", " ", " : ", " = ", " — "))
    labels = [_capital(lines.pick(rng, f"{kind}.label", lang), rng) for kind in kinds]
    if rng.random() < 0.06:
        labels, colon = [f"[{label}]" for label in labels], " "
    labelled = [f"{label}{colon}{made.facts[kind]}" for label, kind in zip(labels, kinds, strict=True)]
    if shape < 0.75:
        bullet = rng.choice(BULLETS)
        return "\n".join(bullet + each for each in labelled)
    return rng.choice((", ", ", ", " / ", ". ", "; ", " | ")).join(labelled) + rng.choice(("", "."))


def _prose(rng: random.Random, made: Shop, kind: str) -> str:
    text = lines.pick(rng, f"{kind}.line", made.lang)
    return _sentence(attach_particles(text.replace("{v}", made.facts[kind])))


def _sentence(text: str) -> str:
    text = text.strip()
    text = text[0].upper() + text[1:] if text[0].isascii() else text
    return text if text[-1] in ".!?" else text + "."


def _capital(text: str, rng: random.Random) -> str:
    return text[0].upper() + text[1:] if rng.random() < 0.7 else text


def _prices(rng: random.Random, made: Shop) -> str:
    """The menu as lines, a comma list or a sentence."""
    rows = list(made.written_prices().items())
    colon = rng.choice((" ", " ", ": ", ": ", " - ", " – ", " = ", " ... "))
    texts = [f"{dish}{colon}{price}" for dish, price in rows]
    if rng.random() < 0.12:
        texts = [f"{dish} ({price})" for dish, price in rows]
    intro = lines.pick(rng, "menu_intro", made.lang) if rng.random() < 0.75 else ""
    shape = rng.random()
    if shape < 0.4:
        bullet = rng.choice(BULLETS)
        return (intro + "\n" if intro else "") + "\n".join(bullet + each for each in texts)
    if shape < 0.8:
        return (
            (intro + " " if intro else "")
            + rng.choice((", ", ", ", " / ", "; ", " | ")).join(texts)
            + rng.choice(("", "."))
        )
    if made.lang == "ko":
        said = [f"{dish}(은/는) {price}" for dish, price in rows]
        return attach_particles(rng.choice(("(이고/고), ", ", ")).join(said)) + rng.choice(("입니다.", "이에요."))
    verb = rng.choice((" is ", " costs ", " for "))
    return _sentence("the " + ", the ".join(f"{dish}{verb}{price}" for dish, price in rows))
