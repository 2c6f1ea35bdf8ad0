"""The recall table says how often a model finds a fact of its window, on values that training never saw.

`cases` and `table` know no engine. `recipe.measure` asks transformers, and `dosirak recall` asks the serving
engine.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from models.demo.dialogue import Builder, Dialogue, Message
from models.demo.kinds import GUEST_KINDS, SHOP_KINDS
from models.demo.lexicon import Lang, Split
from models.demo.speech import Fact, Speech
from models.repository.report import UNTOLD

DISTANCES = range(1, 11)
NEAR = 10
LANGUAGES: tuple[Lang, Lang] = ("en", "ko")
WORDINGS: tuple[Split, Split] = ("train", "test")


@dataclass(frozen=True, slots=True)
class RecallCase:
    """Messages that end with a question, the one right value, the wrong ones of the window, and the cell it counts in.

    `in_window` is False where the window does not hold the fact: then `expected` should not be found.
    """

    messages: tuple[Message, ...]
    documents: tuple[dict[str, str], ...]
    expected: str
    others: tuple[str, ...]
    cell: str
    wording: Split
    lang: Lang
    kind: str
    in_window: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the table: right answers among its questions."""

    cell: str
    wording: Split
    right: int
    questions: int

    @property
    def share(self) -> float:
        return self.right / self.questions


Answer: TypeAlias = Callable[[Sequence[RecallCase]], list[str]]


def cases(seed: int, per_cell: int = 300) -> list[RecallCase]:
    """`per_cell` cases for each cell and wording; the same arguments give the same cases."""
    return [
        _case(random.Random(f"recall {seed} {cell} {wording} {number}"), cell, wording, LANGUAGES[number % 2])
        for cell in CELLS
        for wording in WORDINGS
        for number in range(per_cell)
    ]


def long_cases(seed: int, count: int) -> list[RecallCase]:
    """Returns chats of 110 to 120 turns, more than the demo's window holds. Every second fact is told at most NEAR
    turns before the question, the others 75 to 105 turns before it."""
    made = []
    for number in range(count):
        rng = random.Random(f"long {seed} {number}")
        turns = rng.randint(75, 105) if number % 2 else rng.randint(1, NEAR)
        wording: Split = "train" if number // 2 % 2 else "test"
        play = partial(_long, turns=turns, whole=rng.randint(110, 120))
        made.append(_case(rng, f"long {turns}", wording, LANGUAGES[number // 4 % 2], play))
    return made


def is_right(case: RecallCase, text: str) -> bool:
    """Whether `text` holds the expected value, whole, and no other value of the window."""
    wrong = (other for other in case.others if other not in case.expected)
    return holds(text, case.expected) and not any(holds(text, other) for other in wrong)


def holds(text: str, value: str) -> bool:
    """Returns whether the text holds the value. Digits or Latin letters beside it would make it another value."""
    return re.search(rf"(?<![0-9A-Za-z가-힣]){re.escape(value)}(?![0-9A-Za-z])", text) is not None


def table(questions: Sequence[RecallCase], answer: Answer) -> list[Row]:
    """Ask all `questions` of `answer`, which returns one text per case in order, and count by cell and wording."""
    counts: dict[tuple[str, Split], list[bool]] = {}
    for case, text in zip(questions, answer(questions), strict=True):
        counts.setdefault((case.cell, case.wording), []).append(is_right(case, text))
    return [Row(cell, wording, sum(hits), len(hits)) for (cell, wording), hits in counts.items()]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table, one line a cell, trained and unseen wording side by side."""
    lines = ["| cell | trained wording | unseen wording |", "|---|---|---|"]
    for cell in dict.fromkeys(row.cell for row in rows):
        shares = {row.wording: f"{row.share:.1%} ({row.right}/{row.questions})" for row in rows if row.cell == cell}
        lines.append(f"| {cell} | {shares.get('train', '')} | {shares.get('test', '')} |")
    return "\n".join(lines)


@dataclass(slots=True)
class _Scene:
    """Builds one case."""

    rng: random.Random
    build: Builder
    lang: Lang

    def premise(self) -> None:
        if self.rng.random() < 0.5:
            self.build.system(self.facts(SHOP_KINDS, self.rng.randint(0, 2)), [], self.lang)

    def facts(self, kinds: Sequence[str], count: int) -> list[Fact]:
        free = [kind for kind in kinds if (kind, "") not in self.build.facts]
        return [self.build.new_fact(kind, self.lang) for kind in self.rng.sample(free, min(count, len(free)))]

    def noise(self, turns: int, never: str) -> None:
        """Turns that tell, ask and chat about anything but the kind `never`."""
        kinds = [kind for kind in GUEST_KINDS if kind != never]
        for _ in range(turns):
            roll, new = self.rng.random(), self.facts(kinds, 1)
            known = [fact for fact in self.build.facts.values() if fact.kind != never]
            if roll < 0.45 and new:
                self.build.tell(new, self.lang)
            elif roll < 0.75 and known:
                self.build.ask([self.rng.choice(known)], self.lang)
            else:
                self.build.chat(self.lang)


Scenario: TypeAlias = Callable[[_Scene], tuple[Fact, Lang, bool]]


def _case(rng: random.Random, cell: str, wording: Split, lang: Lang, play: Scenario | None = None) -> RecallCase:
    scene = _Scene(rng, Builder(rng, "test", Speech(rng, wording)), lang)
    target, ask_lang, as_json = (play or CELLS[cell])(scene)
    scene.build.ask([target], ask_lang, as_json=as_json)
    made: Dialogue = scene.build.finish()
    others = tuple(sorted(made.values - {target.value}))
    in_window = not cell.startswith(UNTOLD)
    return RecallCase(
        made.messages[:-1], made.documents, target.value, others, cell, wording, ask_lang, target.kind, in_window
    )


def _distance(turns: int) -> Scenario:
    """The fact is told, perhaps with others, `turns` turns before the question."""

    def play(scene: _Scene) -> tuple[Fact, Lang, bool]:
        scene.premise()
        kind = scene.rng.choice(GUEST_KINDS)
        scene.noise(scene.rng.randint(0, 2), kind)
        target = scene.build.new_fact(kind, scene.lang)
        facts = [
            target,
            *scene.facts([other for other in GUEST_KINDS if other != kind], scene.rng.choice((0, 0, 1, 2))),
        ]
        scene.rng.shuffle(facts)
        scene.build.tell(facts, scene.lang)
        scene.noise(turns - 1, kind)
        return target, scene.lang, False

    return play


def _long(scene: _Scene, turns: int, whole: int) -> tuple[Fact, Lang, bool]:
    """The fact is told `turns` turns before the question in a chat of `whole`."""
    scene.premise()
    kind = scene.rng.choice(GUEST_KINDS)
    scene.noise(whole - turns, kind)
    scene.build.tell([target := scene.build.new_fact(kind, scene.lang)], scene.lang)
    scene.noise(turns - 1, kind)
    return target, scene.lang, False


def _untold(scene: _Scene) -> tuple[Fact, Lang, bool]:
    """The same chats without the turn that tells the fact."""
    scene.premise()
    kind = scene.rng.choice(GUEST_KINDS)
    scene.noise(scene.rng.randint(1, 11), kind)
    return scene.build.new_fact(kind, scene.lang), scene.lang, False


def _system(scene: _Scene) -> tuple[Fact, Lang, bool]:
    facts = scene.facts(SHOP_KINDS, scene.rng.randint(1, 6))
    target = scene.rng.choice(facts)
    scene.build.system(facts, [], scene.lang)
    scene.noise(scene.rng.randint(0, 8), target.kind)
    return target, scene.lang, False


def _note(scene: _Scene) -> tuple[Fact, Lang, bool]:
    facts = scene.facts(GUEST_KINDS, scene.rng.randint(1, 3))
    target = scene.rng.choice(facts)
    scene.build.system(scene.facts(SHOP_KINDS, scene.rng.randint(0, 2)), facts, scene.lang)
    scene.noise(scene.rng.randint(0, 8), target.kind)
    return target, scene.lang, False


def _notice(scene: _Scene) -> tuple[Fact, Lang, bool]:
    scene.premise()
    facts = scene.facts(SHOP_KINDS, scene.rng.randint(1, 5))
    target = scene.rng.choice(facts)
    scene.build.document(facts, scene.lang)
    scene.noise(scene.rng.randint(0, 8), target.kind)
    return target, scene.lang, False


def _menu(scene: _Scene) -> tuple[Fact, Lang, bool]:
    scene.premise()
    rows = [scene.build.new_fact("price", scene.lang) for _ in range(scene.rng.randint(2, 5))]
    facts = list({fact.key.split()[0]: fact for fact in rows}.values())
    target = scene.rng.choice(facts)
    scene.build.document(facts, scene.lang)
    scene.noise(scene.rng.randint(0, 6), "price")
    return target, scene.lang, False


def _json(scene: _Scene) -> tuple[Fact, Lang, bool]:
    target, lang, _ = _distance(scene.rng.randint(1, 10))(scene)
    return target, lang, True


def _corrected(scene: _Scene) -> tuple[Fact, Lang, bool]:
    """The newest of two values, told 1 to 10 turns before the question."""
    turns = scene.rng.randint(1, 10)
    old, lang, _ = _distance(scene.rng.randint(1, 4))(scene)
    target = scene.build.new_fact(old.kind, lang)
    scene.build.tell([target], lang, correction=True)
    scene.noise(turns - 1, old.kind)
    return target, lang, False


def _crossed(scene: _Scene) -> tuple[Fact, Lang, bool]:
    """Told in one language, asked for in the other."""
    target, lang, _ = _distance(scene.rng.randint(1, 10))(scene)
    return target, "ko" if lang == "en" else "en", False


def _full(scene: _Scene) -> tuple[Fact, Lang, bool]:
    """Near the end of a chat that fills most of the window."""
    scene.premise()
    kind = scene.rng.choice(GUEST_KINDS)
    scene.noise(45, kind)
    scene.build.tell([target := scene.build.new_fact(kind, scene.lang)], scene.lang)
    scene.noise(scene.rng.randint(0, 9), kind)
    return target, scene.lang, False


CELLS: dict[str, Scenario] = {
    **{f"told {turns} turn{'s' * (turns > 1)} before": _distance(turns) for turns in DISTANCES},
    "system prompt": _system,
    "customer note in the system prompt": _note,
    "document: notice": _notice,
    "document: price list": _menu,
    "JSON answer": _json,
    "corrected value": _corrected,
    "told in one language, asked in the other": _crossed,
    "chat of 45 to 55 turns": _full,
    UNTOLD: _untold,
}
