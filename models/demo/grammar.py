"""The grammar makes the corpus: an endless, seeded stream of shop dialogues that tell, correct and ask for facts.

`dialogue(seed, ...)` is a pure function: the same arguments give the same dialogue on every machine.
"""

import random
from dataclasses import dataclass

from models.demo.dialogue import Builder, Dialogue
from models.demo.kinds import GUEST_KINDS, KINDS, SHOP_KINDS
from models.demo.lexicon import Lang, Split
from models.demo.speech import Fact, Speech

AGAIN = 0.15  # how much rarer a fact is asked for again after it was answered once


@dataclass(frozen=True, slots=True)
class Style:
    """The style of dialogues: their length, the most facts of the system prompt and documents, the share of tellings
    that the assistant repeats, the shares of English, Korean and mixed dialogues, and the share of corrections."""

    turns: tuple[int, int] = (8, 14)
    shop_facts: int = 5
    rows: int = 5
    echo: float = 0.2
    languages: tuple[float, float, float] = (0.38, 0.38, 0.24)
    corrections: float = 0.08


def dialogue(seed: int, style: Style | None = None, entities: Split = "train", wording: Split = "train") -> Dialogue:
    """The dialogue number `seed`, with the values and the wordings of the given splits."""
    rng = random.Random(f"dosirak {seed}")
    style = style or Style()
    author = _Author(Builder(rng, entities, Speech(rng, wording)), rng, _languages(rng, style), style)
    author.premise()
    if rng.random() < 0.2:
        author.chat()
    for _ in range(rng.randint(*style.turns)):
        author.turn()
    return author.build.finish()


def _languages(rng: random.Random, style: Style) -> tuple[Lang, ...]:
    return rng.choices((("en",), ("ko",), ("en", "ko")), style.languages)[0]


@dataclass(slots=True)
class _Author:
    """Decides what happens next in the dialogue that `build` holds."""

    build: Builder
    rng: random.Random
    languages: tuple[Lang, ...]
    style: Style

    def lang(self) -> Lang:
        return self.rng.choice(self.languages)

    def premise(self) -> None:
        """System prompt and documents: each is there in a part of the dialogues, each shop fact in one of the two."""
        rng, lang, style = self.rng, self.lang(), self.style
        kinds = rng.sample(SHOP_KINDS, rng.randint(0, min(style.shop_facts, len(SHOP_KINDS))))
        noted = rng.sample(GUEST_KINDS, rng.randint(1, 3)) if rng.random() < 0.2 else []
        cut = rng.randint(0, len(kinds)) if rng.random() < 0.5 else len(kinds)
        if kinds[:cut] or noted or rng.random() < 0.5:
            self.build.system(self.facts(kinds[:cut], lang), self.facts(noted, lang), lang)
        if kinds[cut:]:
            self.build.document(self.facts(kinds[cut:], lang), lang)
        if rng.random() < 0.3:
            self.build.document(self.menu(rng.randint(1, style.rows), lang), lang)

    def facts(self, kinds: list[str], lang: Lang) -> list[Fact]:
        return [self.build.new_fact(kind, lang) for kind in kinds]

    def menu(self, rows: int, lang: Lang) -> list[Fact]:
        """Prices of dishes with different first words."""
        facts = {fact.key.split()[0]: fact for fact in (self.build.new_fact("price", lang) for _ in range(rows))}
        return list(facts.values())

    def turn(self) -> None:
        """One exchange; what cannot be done yet becomes a telling."""
        (action,) = self.rng.choices(
            (self.tell, self.ask, self.ask_json, self.ask_two, self.ask_unknown, self.correct, self.chat),
            (0.23, 0.46, 0.06, 0.05, 0.06, self.style.corrections, 0.06),
        )
        action()

    def tell(self) -> None:
        unknown = [kind for kind in GUEST_KINDS if (kind, "") not in self.build.facts]
        if not unknown:
            return self.correct()
        lang = self.lang()
        count = min(len(unknown), self.rng.choice((1, 1, 1, 2, 2, 3)))
        chosen = self.rng.sample(unknown, count)
        if chosen[0] == "dish" and "quantity" in unknown and self.rng.random() < 0.4:
            chosen = ["dish", "quantity"]
        self.build.tell(self.facts(chosen, lang), lang, echo=self.rng.random() < self.style.echo)
        return None

    def correct(self) -> None:
        """Replace a fact that the guest (or the note about the guest) gave."""
        old = [fact for fact in self.build.facts.values() if KINDS[fact.kind].source == "guest"]
        if not old:
            return self.tell()
        lang = self.lang()
        fact = self.build.new_fact(self.rng.choice(old).kind, lang)
        self.build.tell([fact], lang, correction=True, echo=self.rng.random() < self.style.echo)
        return None

    def ask(self) -> None:
        self._ask(1, as_json=False)

    def ask_json(self) -> None:
        self._ask(1, as_json=True)

    def ask_two(self) -> None:
        self._ask(2, as_json=False)

    def _ask(self, count: int, as_json: bool) -> None:
        places = list(self.build.facts)
        if len(places) < count:
            return self.tell()
        weights = [self._wish(place) for place in places]
        chosen = dict.fromkeys(self.rng.choices(places, weights, k=count))
        self.build.ask([self.build.facts[place] for place in chosen], self.lang(), as_json=as_json)
        return None

    def _wish(self, place: tuple[str, str]) -> float:
        """Returns the weight of a question for a fact: far facts have more, answered ones less."""
        distance = min(12, self.build.turn - self.build.told_at[place])
        return (0.5 + 0.25 * distance) * (1.0 if place in self.build.fresh else AGAIN)

    def ask_unknown(self) -> None:
        """Ask for a fact that the window does not hold."""
        kinds = [kind for kind in KINDS if (kind, "") not in self.build.facts]
        lang = self.lang()
        self.build.ask([self.build.new_fact(self.rng.choice(kinds), lang)], lang, in_window=False)

    def chat(self) -> None:
        self.build.chat(self.lang())
