"""Reasoning is told from content, however the tokens cut the text."""

from __future__ import annotations

import random

import pytest

from service.errors import UnsupportedField
from service.text.reasoning import Parted, ReasoningForm, ReasoningReader, ReasoningUse, Start, form_of

THINK = ReasoningForm("<think>", "</think>")
CASES = [
    # text, is open, reasoning, content
    ("<think>\nIt rains.\n</think>\n\nTake it.", False, "It rains.", "Take it."),
    ("\n <think>a b</think>c", False, "a b", "c"),
    ("It rains.\n\n</think>\n\n x", True, "It rains.", " x"),
    ("<think>\nagain</think>y", True, "again", "y"),
    ("\n\n</think>\n\nx", True, "", "x"),
    ("plain </think> text <think>", False, "", "plain </think> text <think>"),
    ("a</think>b</think>c<think>d", True, "a", "b</think>c<think>d"),
    ("a < b </thin >\n c", True, "a < b </thin >\n c", ""),
    ("cut </thi", True, "cut </thi", ""),
    ("<thin", False, "", "<thin"),
    ("  ", False, "", "  "),
    ("  \n", True, "", ""),
    ("a</think>\n\n", True, "a", ""),
    ("a \n\n \n  \n b \n \n \n</think>\n\n\n \n c", True, "a \n\n \n  \n b", " \n c"),
    (" \n \n  \n x", False, "", " \n \n  \n x"),
    ("<think><think>\n<think> <think>a</think>b", False, "a", "b"),
    ("<think> <think>\na <think>", True, "a <think>", ""),
]


def test_parts_do_not_depend_on_cuts() -> None:
    for text, is_open, reasoning, content in CASES:
        for seed in range(30):
            generator = random.Random(seed)
            reader, found, at = ReasoningReader(THINK, is_open), Parted(), 0
            while at < len(text):
                size = generator.choice((1, 2, 3, 9))
                found += reader.push(text[at : at + size])
                at += size
            found += reader.finish()
            assert found == Parted(reasoning, content)
            assert reader.content_at is None or text[reader.content_at :] == content


@pytest.mark.parametrize(("begin", "is_open"), [("x", True), ("", True), ("", False)])
def test_blanks_to_the_limit_are_not_read_again_and_again(
    monkeypatch: pytest.MonkeyPatch, begin: str, is_open: bool
) -> None:
    reader, joined = ReasoningReader(THINK, is_open), list[int]()
    plain = ReasoningReader._join

    def counting(self: ReasoningReader, text: str = "") -> None:
        plain(self, text)
        joined.append(len(self._held))

    monkeypatch.setattr(ReasoningReader, "_join", counting)
    found = reader.push(begin)
    for _ in range(1000):
        found += reader.push(" \n")
    found += reader.push("y")
    found += reader.finish()
    whole = begin + " \n" * 1000 + "y"
    assert found == (Parted(reasoning=whole.lstrip()) if is_open else Parted(content=whole))
    assert sum(joined) < 3 * len(whole)


def test_nothing_is_held_without_need() -> None:
    reader = ReasoningReader(THINK, is_open=True)
    assert reader.push("a b") == Parted("a b")
    assert reader.push(" <") == Parted()
    assert reader.push("b") == Parted(" <b")
    assert reader.push("</think>") == Parted()
    assert reader.push("c ") == Parted(content="c ")


def test_the_form_and_its_start_are_read_from_the_template() -> None:
    form = form_of("<|im_start|>\0<think>\n\n</think>\n\n")
    assert form == THINK
    assert [THINK.start(text) for text in ("x<think>\n", "<think>\n\n</think>\n\n", "<|im_start|>assistant\n")] == [
        Start.OPEN,
        Start.CLOSED,
        Start.UNSAID,
    ]
    assert form_of("[THINK]\0[/THINK]") == ReasoningForm("[THINK]", "[/THINK]", name="magistral")
    assert form_of("<|im_start|>") is None


USES = [
    (ReasoningUse("f", False), THINK, {"enable_thinking"}, {"enable_thinking": False}),
    (ReasoningUse("f", True), THINK, {"thinking"}, {"thinking": True}),
    (ReasoningUse("f", True), THINK, (), {}),
    (ReasoningUse("f", False), None, (), {}),
    (ReasoningUse("f", effort="high"), THINK, {"reasoning_effort"}, {"reasoning_effort": "high"}),
    (ReasoningUse("f", effort="low"), None, {"reasoning_effort"}, {"reasoning_effort": "low"}),
    (ReasoningUse("f", effort="medium"), THINK, {"enable_thinking"}, {}),
    (ReasoningUse("f", False), THINK, (), None),
    (ReasoningUse("f", True), None, (), None),
    (ReasoningUse("f", effort="high"), THINK, {"enable_thinking"}, None),
    (ReasoningUse("f", effort="medium"), None, (), None),
]


def test_what_is_asked_becomes_a_variable_or_is_refused() -> None:
    for use, form, known, variables in USES:
        if variables is None:
            with pytest.raises(UnsupportedField, match="`f` cannot act"):
                use.variables(form, known)
        else:
            assert use.variables(form, known) == variables


def test_a_part_of_a_mark_at_a_limit_is_not_shown() -> None:
    for text, is_open, parted in (
        ("<think>It rains.</thi", False, ("It rains.", "")),
        ("<think>It rains <", False, ("It rains", "")),
        ("It rains.\n</", True, ("It rains.", "")),
        ("<thi", False, ("", "")),
        ("a </thin", False, ("", "a ")),
        ("a <", False, ("", "a <")),
        ("<think>a</think>b </th", False, ("a", "b </th")),
    ):
        for step in (1, 3, len(text)):
            reader = ReasoningReader(THINK, is_open)
            found = Parted()
            for at in range(0, len(text), step):
                found += reader.push(text[at : at + step])
            found += reader.finish(is_cut=True)
            assert (found.reasoning, found.content) == parted, (text, step)


def test_a_closing_mark_that_nothing_has_opened_is_not_shown() -> None:
    for text, content in (
        ("It rains.\n</think>\n\nHello.", "It rains.\n\n\nHello."),
        ("It rains.</think>", "It rains."),
        ("Write `</think>` there.", "Write `</think>` there."),
        ("</think>\na</think>\n", "\na</think>\n"),
        ("a </thin", "a </thin"),
    ):
        for step in (1, 3, len(text)):
            reader = ReasoningReader(THINK, is_open=False)
            found = Parted()
            for at in range(0, len(text), step):
                found += reader.push(text[at : at + step])
            found += reader.finish()
            assert (found.reasoning, found.content) == ("", content), (text, step)
