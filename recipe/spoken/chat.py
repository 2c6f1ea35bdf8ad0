"""A chat is a customer's acts in a row, at the desk of one shop.

`chat(seed)` is a pure function: the same number gives the same chat on every machine.
"""

import random
from collections.abc import Callable

from models.demo.dialogue import Dialogue
from models.demo.lexicon import Lang
from recipe.spoken import acts
from recipe.spoken.customer import Customer
from recipe.spoken.desk import Desk
from recipe.spoken.ordering import change, order
from recipe.spoken.shop import shop

TURNS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 14, 18)
SHARES: tuple[tuple[float, Callable[[Customer], None]], ...] = (
    (0.17, acts.tell),
    (0.10, order),
    (0.20, acts.ask),
    (0.14, acts.ask_shop),
    (0.06, acts.ask_order),
    (0.09, acts.ask_total),
    (0.06, change),
    (0.035, acts.correct),
    (0.07, acts.ask_price),
    (0.035, acts.ask_missing),
    (0.10, acts.off_topic),
    (0.13, acts.talk),
)
SILENT = 0.27  # of the shops have neither prompt nor documents
BRIEF = 0.25  # of the chats begin with a question and end soon, most of them in a shop without a prompt
BRIEF_TURNS = (1, 1, 2, 3)
BRIEF_SILENT = 0.6
QUESTIONS: tuple[tuple[float, Callable[[Customer], None]], ...] = (
    (0.5, acts.ask_shop),
    (0.22, acts.ask_missing),
    (0.05, acts.ask_order),
    (0.05, acts.ask_total),
    (0.08, acts.ask_price),
    (0.1, acts.off_topic),
)


def chat(seed: int, most: int = TURNS[-1]) -> Dialogue:
    """The chat number `seed`, of at most `most` turns and a greeting."""
    rng = random.Random(f"spoken {seed}")
    first: Lang = rng.choice(("ko", "en"))
    other: Lang = "en" if first == "ko" else "ko"
    written: Lang = first if rng.random() < 0.88 else other
    brief = rng.random() < BRIEF
    turns = min(most, rng.choice(BRIEF_TURNS if brief else TURNS))
    switch = rng.randint(1, turns) if rng.random() < 0.14 else turns + 1
    customer = Customer(rng, Desk(rng, shop(rng, written, BRIEF_SILENT if brief else SILENT)), first)
    if not brief and rng.random() < 0.35:
        acts.talk(customer, "greeting")
    for at in range(turns):
        customer.lang = first if at < switch else other
        shares = QUESTIONS if brief and at == 0 else SHARES
        act = rng.choices([act for _, act in shares], [share for share, _ in shares])[0]
        act(customer)
    return customer.desk.finish()
