"""The results of held-out dialogues: answers with their verdicts, counted by kind, language, style, source, distance.

They know no engine; `recipe.dialogues` has the answers given.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from recipe.held_out.checks import TALK, is_garbage, is_right
from recipe.held_out.dialogues import Asks, HeldOut

DISTANCES = ((1, "1"), (2, "2"), (4, "3 to 4"), (6, "5 to 6"), (9, "7 to 9"), (99, "10 and more"))


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer in one dialogue; `asks` where it is checked. `turn` counts from 1."""

    dialogue: HeldOut
    turn: int
    question: str
    text: str
    asks: Asks | None

    @property
    def is_right(self) -> bool:
        return self.asks is not None and is_right(self.asks, self.question, self.text)

    @property
    def is_garbage(self) -> bool:
        return is_garbage(self.text)


@dataclass(frozen=True, slots=True)
class Count:
    """How many of the answers of a group are right."""

    group: str
    right: int
    asked: int

    def __str__(self) -> str:
        return f"{self.right / self.asked:.1%} ({self.right}/{self.asked})" if self.asked else "-"


def answered(dialogues: Sequence[HeldOut], texts: Sequence[Sequence[str]]) -> list[Answered]:
    """Every answer of every dialogue; `texts` has one list of answers a dialogue."""
    return [
        Answered(dialogue, at + 1, turn.user, text, turn.asks)
        for dialogue, given in zip(dialogues, texts, strict=True)
        for at, (turn, text) in enumerate(zip(dialogue.turns, given, strict=True))
    ]


def goals(answers: Iterable[Answered]) -> list[Count]:
    """The counts that the demo's goals are set in."""
    every = list(answers)
    asked = [each for each in every if each.asks]

    def of(group: str, wanted: Callable[[Answered, Asks], bool]) -> Count:
        return _count(group, [each for each in asked if each.asks and wanted(each, each.asks)])

    return [
        of("plain facts of the chat", lambda each, asks: asks.source == "chat" and each.dialogue.style == "plain"),
        of(
            "paraphrased facts of the chat", lambda each, asks: asks.source == "chat" and each.dialogue.style != "plain"
        ),
        of("facts of system prompt and documents", lambda each, asks: asks.source in ("system", "document")),
        of("not told", lambda each, asks: asks.kind == "not_told"),
        of("off topic, refused", lambda each, asks: asks.kind == "off_topic"),
        of("small talk, in the right language", lambda each, asks: asks.kind in TALK),
        Count("every answer: no garbage", sum(not each.is_garbage for each in every), len(every)),
    ]


def table(answers: Iterable[Answered]) -> list[Count]:
    """The goals, then every checked answer by kind, language, style, source and distance."""
    every = list(answers)
    groups: dict[str, list[Answered]] = {}
    for each in every:
        if each.asks:
            for group in _groups(each, each.asks):
                groups.setdefault(group, []).append(each)
    return goals(every) + [_count(group, groups[group]) for group in sorted(groups)]


def _groups(each: Answered, asks: Asks) -> list[str]:
    groups = [f"kind: {asks.kind}"]
    if asks.source:
        groups += [f"language: {each.dialogue.language}", f"style: {each.dialogue.style}", f"source: {asks.source}"]
        groups += ["switches language"] if each.dialogue.switches else []
    if asks.source == "chat" and asks.told:
        turns = each.turn - asks.told
        groups.append("distance: " + next(name for most, name in DISTANCES if turns <= most) + " turns")
    return groups


def _count(group: str, answers: Sequence[Answered]) -> Count:
    return Count(group, sum(each.is_right for each in answers), len(answers))


def markdown(columns: dict[str, list[Count]]) -> str:
    """The counts as a table, a column for each version."""
    lines = [f"| answers | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for counts in zip(*columns.values(), strict=True):
        lines.append(f"| {counts[0].group} | {' | '.join(str(count) for count in counts)} |")
    return "\n".join(lines)


def transcript(answers: Sequence[Answered], marks: bool = True) -> str:
    """One dialogue as it went, unedited; a checked answer has its verdict if `marks`."""
    dialogue = answers[0].dialogue
    lines = [f"**{dialogue.id}** ({dialogue.language}, {dialogue.style})", ""]
    if dialogue.system:
        lines.append("> system: " + dialogue.system.replace("\n", " / "))
    for document in dialogue.documents or []:
        lines.append(f"> document: {document.title or ''}: " + document.text.replace("\n", " / "))
    for each in answers:
        verdict = "" if not (marks and each.asks) else f" ({each.asks.kind}: {'right' if each.is_right else 'wrong'})"
        lines += [f"- customer: {each.question}", f"- shop: {each.text}{verdict}"]
    return "\n".join(lines)
