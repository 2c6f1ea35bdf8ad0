"""A dialogue is built here turn by turn, and finished: messages, documents, and the facts of its right answers.

The builder keeps the facts of the window. `grammar` and `recall` decide which turn comes next.
"""

import random
from dataclasses import dataclass, field
from typing import TypeAlias

from models.demo.kinds import KINDS
from models.demo.lexicon import Lang, Split, dish, draw
from models.demo.smalltalk import SMALL_TALK
from models.demo.speech import FILLERS, WORDINGS, Fact, Speech, answer, capital, json_answer, unknown
from models.demo.wording import pick

Message: TypeAlias = dict[str, str]

PERSONAS: dict[Lang, str] = {
    "en": "You are the assistant of a lunch-box shop.|You are a helpful assistant of a small lunch-box shop."
    "|You take orders in a lunch-box shop.|You answer the guests of a lunch-box shop.|You are a helpful assistant.",
    "ko": "당신은 도시락 가게의 직원입니다.|당신은 작은 도시락 가게의 친절한 도우미입니다."
    "|도시락 가게에서 주문을 받습니다.|도시락 가게 손님에게 답해 주세요.|당신은 친절한 도우미입니다.",
}
NOTICES: dict[Lang, str] = {"en": "Notice|Shop guide|Information", "ko": "안내문|가게 안내|정보"}
MENUS: dict[Lang, str] = {"en": "Menu|Price list", "ko": "메뉴판|가격표"}
GUESTS: dict[Lang, str] = {"en": "Customer", "ko": "고객"}


@dataclass(frozen=True, slots=True)
class FactAnswer:
    """The assistant message at `index` gives or repeats `fact`. `in_window` is False if the window lacks the fact."""

    index: int
    fact: Fact
    in_window: bool = True


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages as a chat template takes them, documents, the answers to facts, and every value that occurs."""

    messages: tuple[Message, ...]
    documents: tuple[dict[str, str], ...]
    answers: tuple[FactAnswer, ...]
    values: frozenset[str]


@dataclass(slots=True)
class Builder:
    """Appends turns to one dialogue; owns its state, which `finish` freezes."""

    rng: random.Random
    entities: Split
    speech: Speech
    messages: list[Message] = field(default_factory=list)
    documents: list[dict[str, str]] = field(default_factory=list)
    answers: list[FactAnswer] = field(default_factory=list)
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    told_at: dict[tuple[str, str], int] = field(default_factory=dict)
    fresh: set[tuple[str, str]] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    turn: int = 0

    def new_fact(self, kind: str, lang: Lang) -> Fact:
        """A fact with a value that no other fact of this dialogue has."""
        key = draw(self.rng, dish, lang, self.entities) if kind == "price" else ""
        while True:
            value = draw(self.rng, KINDS[kind].pool, lang, self.entities)
            if not any(value in other or other in value for other in self.values):
                return Fact(kind, value, key)

    def learn(self, fact: Fact) -> None:
        """From this turn on, `fact` is the valid one of its kind and key."""
        place = (fact.kind, fact.key)
        self.facts[place] = fact
        self.told_at[place] = self.turn
        self.fresh.add(place)
        self.values.add(fact.value)

    def system(self, shop: list[Fact], guest: list[Fact], lang: Lang) -> None:
        """Open the dialogue with a system prompt that states these facts."""
        notes = [f"{GUESTS[lang]} {_bare(WORDINGS[lang][fact.kind].known)}: {fact.value}" for fact in guest]
        lines = [self.speech.tell(fact, lang) for fact in shop] + notes
        text = pick(self.rng, PERSONAS[lang])
        if lines:
            text += self.rng.choice((" ", "\n")) + self.speech.join([capital(line) for line in lines])
        self.messages.append({"role": "system", "content": text})
        for fact in (*shop, *guest):
            self.learn(fact)

    def document(self, facts: list[Fact], lang: Lang) -> None:
        """Give a document that states these facts: a menu if they are prices, else a notice."""
        menu = facts[0].kind == "price"
        lines = [self.speech.tell(fact, lang) for fact in facts]
        text = "\n".join(lines) if menu else self.speech.join([capital(line) for line in lines])
        entry = {"text": text}
        if self.rng.random() < 0.8:
            entry = {"title": pick(self.rng, (MENUS if menu else NOTICES)[lang]), **entry}
        self.documents.append(entry)
        for fact in facts:
            self.learn(fact)

    def tell(self, facts: list[Fact], lang: Lang, correction: bool = False, echo: bool = False) -> None:
        """One user message that tells `facts`, and the acknowledgement (with `echo`, it repeats the last value)."""
        if echo:
            self.answers.append(FactAnswer(len(self.messages) + 1, facts[-1]))
        if correction:
            said = [self.speech.correct(fact, lang) for fact in facts]
        else:
            said = self.speech.statements(facts, lang)
        self._turn(self.speech.message(said, lang), self._reply(facts, lang, echo))
        for fact in facts:
            self.learn(fact)

    def _reply(self, facts: list[Fact], lang: Lang, echo: bool) -> str:
        fillers = FILLERS[lang]
        return fillers.echo.replace("{v}", facts[-1].value) if echo else pick(self.rng, fillers.acks)

    def ask(self, facts: list[Fact], lang: Lang, as_json: bool = False, in_window: bool = True) -> None:
        """One user message that asks for `facts` (one if `as_json`), and the right answer.

        With `in_window` False, none of them is in the window, and that is the answer.
        """
        questions = [self.speech.ask(fact, lang) for fact in facts]
        if as_json:
            questions.append(self.speech.json_request(lang))
        for fact in facts:
            self.answers.append(FactAnswer(len(self.messages) + 1, fact, in_window))
            self.fresh.discard((fact.kind, fact.key))
        if not in_window:
            reply = unknown(facts[0].kind, lang)
        else:
            reply = json_answer(facts[0]) if as_json else " ".join(answer(fact, lang) for fact in facts)
        self._turn(self.speech.message(questions, lang, polite=False), reply)

    def chat(self, lang: Lang) -> None:
        """One exchange of small talk."""
        said, reply = self.rng.choice(SMALL_TALK[lang])
        text = self.rng.choice(said)
        self._turn(capital(text) if self.rng.random() < 0.6 else text, reply)

    def _turn(self, said: str, reply: str) -> None:
        self.messages += [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]
        self.turn += 1

    def finish(self) -> Dialogue:
        return Dialogue(tuple(self.messages), tuple(self.documents), tuple(self.answers), frozenset(self.values))


def _bare(known: str) -> str:
    return known.removeprefix("your ").removeprefix("the ")
