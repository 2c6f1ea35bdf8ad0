"""The checker of acknowledged turns finds what it is there to find."""

from __future__ import annotations

import pytest

from loadtest.crashes import History, differences

KNOWN = History("s", ["a", "b", "c"], {0: "A", 1: "B"})


def stored(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


@pytest.mark.parametrize("messages", [stored(("a", "A"), ("b", "B")), stored(("a", "A"), ("b", "B"), ("c", "?"))])
def test_an_unanswered_turn_may_be_there_or_not(messages: list[dict[str, str]]) -> None:
    assert differences(KNOWN, messages) == []


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (stored(("a", "A")), "lost"),
        (stored(("b", "B"), ("a", "A")), "out of order"),
        (stored(("a", "A"), ("b", "B"), ("b", "B")), "doubled"),
        (stored(("a", "A"), ("b", "B"))[:-1], "torn"),
        (stored(("a", "A"), ("b", "?")), "another answer"),
        (stored(("a", "A"), ("b", "B"), ("x", "X")), "never sent"),
    ],
)
def test_a_planted_defect_is_named(messages: list[dict[str, str]], named: str) -> None:
    assert any(named in each for each in differences(KNOWN, messages))
