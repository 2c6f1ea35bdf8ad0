"""Speech makes one sentence that tells, asks for, corrects or answers a fact, in either language and wording split.

It knows nothing of the order of a dialogue.
"""

import json
import random
import re
from dataclasses import dataclass

from models.demo.kinds import KINDS
from models.demo.lexicon import LOWER_CASE, Lang, Split, made_up
from models.demo.wording import Fillers, Wording, attach_particles, pick
from models.demo.wordings_en import EN, EN_FILLERS
from models.demo.wordings_ko import KO, KO_FILLERS

COUNTED = re.compile(r"\{v\}([개명])")
WORDINGS: dict[Lang, dict[str, Wording]] = {"en": EN, "ko": KO}
FILLERS: dict[Lang, Fillers] = {"en": EN_FILLERS, "ko": KO_FILLERS}


@dataclass(frozen=True, slots=True)
class Fact:
    """A value of one kind; `key` is the dish a price belongs to, empty for every other kind."""

    kind: str
    value: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Speech:
    """Makes sentences from `rng`; with wording "test", each tells or asks in a way that training never saw."""

    rng: random.Random
    wording: Split = "train"

    def tell(self, fact: Fact, lang: Lang) -> str:
        """A statement of `fact`, without a full stop."""
        words, fillers = WORDINGS[lang][fact.kind], FILLERS[lang]
        if fact.kind == "price":
            return self._fill(pick(self.rng, words.tells, self.wording), fact)
        return self._fill(self._compose(words.tells, fillers.tell_frames, words.nouns), fact)

    def ask(self, fact: Fact, lang: Lang) -> str:
        """A question for the value of `fact`."""
        words, fillers = WORDINGS[lang][fact.kind], FILLERS[lang]
        return self._fill(self._compose(words.asks, fillers.ask_frames, words.nouns), fact)

    def correct(self, fact: Fact, lang: Lang) -> str:
        """A statement that replaces what was told before by `fact`."""
        frame = pick(self.rng, FILLERS[lang].corrections, self.wording)
        frame = frame.replace("{n}", pick(self.rng, WORDINGS[lang][fact.kind].nouns))
        return self._fill(frame.replace("{t}", self.tell(fact, lang)), fact)

    def statements(self, facts: list[Fact], lang: Lang) -> list[str]:
        """Statements of `facts`; a dish followed by its quantity may share one."""
        said: list[str] = []
        for fact in facts:
            before = facts[len(said) - 1] if said else None
            if before and before.kind == "dish" and fact.kind == "quantity" and self.rng.random() < 0.7:
                text = pick(self.rng, FILLERS[lang].orders, self.wording).replace("{k}", before.value)
                said[-1:] = [self._fill(text, fact), ""]
            else:
                said.append(self.tell(fact, lang))
        return [text for text in said if text]

    def message(self, sentences: list[str], lang: Lang, polite: bool = True) -> str:
        """The user's message of these sentences, with an opening and perhaps a closing."""
        fillers, rng = FILLERS[lang], self.rng
        opening = self._aside(fillers.openings, lang)
        closing = pick(rng, fillers.closers, self.wording if rng.random() < 0.5 else "train") if polite else ""
        text = f"{opening} {self.join(sentences)}".strip()
        if not text.endswith("?") and (closing or rng.random() < 0.2):
            text = text.rstrip(".") + closing + rng.choice((".", "!", ""))
        return capital(text) if rng.random() < 0.85 else text

    def join(self, sentences: list[str]) -> str:
        """The sentences in a row, each closed by a full stop where it has no mark of its own."""
        return " ".join(text if text.endswith("?") else text + "." for text in sentences)

    def _aside(self, openings: str, lang: Lang) -> str:
        """An opening; in training one in eight is made-up words, so that words never met do not turn the answer."""
        rng = self.rng
        if self.wording == "train" and rng.random() < 1 / 8:
            return " ".join(made_up(rng, lang) for _ in range(rng.randint(1, 3))) + rng.choice((",", "", "."))
        return pick(self.rng, openings, self.wording if self.rng.random() < 0.5 else "train")

    def json_request(self, lang: Lang) -> str:
        return pick(self.rng, FILLERS[lang].json, self.wording)

    def _compose(self, whole: str, frames: str, nouns: str) -> str:
        """A whole sentence, or a frame around a noun phrase; in the test wording one of the three is held out."""
        roll, held = self.rng.random(), self.wording
        if roll < 0.5:
            return pick(self.rng, whole, held)
        held_frame = roll < 0.75
        frame = pick(self.rng, frames, held if held_frame else "train")
        return frame.replace("{n}", pick(self.rng, nouns, "train" if held_frame else held))

    def _fill(self, text: str, fact: Fact) -> str:
        return attach_particles(_spaced(text, fact).replace("{v}", fact.value).replace("{k}", fact.key))


def _spaced(text: str, fact: Fact) -> str:
    """`text` with a space between a Korean number word and what it counts."""
    return COUNTED.sub(r"{v} \1", text) if fact.kind == "quantity" and fact.value[0] >= "가" else text


def capital(text: str) -> str:
    """`text` with a capital at its start, unless a value stands there, which is kept as it is."""
    return text if text.split()[0] in LOWER_CASE else text[0].upper() + text[1:]


def answer(fact: Fact, lang: Lang) -> str:
    """The one right answer that names the value of `fact`."""
    text = _spaced(WORDINGS[lang][fact.kind].answer, fact).replace("{v}", fact.value).replace("{k}", fact.key)
    return attach_particles(text)


def json_answer(fact: Fact) -> str:
    """The right answer as a JSON object of one string."""
    return json.dumps({KINDS[fact.kind].key: fact.value}, ensure_ascii=False)


def unknown(kind: str, lang: Lang) -> str:
    """The right answer about a fact that is nowhere in the window."""
    fillers, known = FILLERS[lang], WORDINGS[lang][kind].known
    template = fillers.untold if KINDS[kind].source == "guest" else fillers.absent
    return attach_particles(template.replace("{n}", known))
