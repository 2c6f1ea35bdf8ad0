"""The checker of turns under crashes finds what it is there to find."""

from __future__ import annotations

import pytest

from loadtest.histories import History, Turn, differences

KNOWN = History("s", [Turn("a", 1, 2, "A"), Turn("b", 3, 6, "B"), Turn("c", 4, 5, "C"), Turn("d", 7, 8, "D")])
WHOLE = [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")]


def stored(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


@pytest.mark.parametrize("pairs", [WHOLE, [WHOLE[0], WHOLE[2], WHOLE[1], WHOLE[3]]])
def test_turns_sent_at_once_stand_in_any_order(pairs: list[tuple[str, str]]) -> None:
    assert differences(KNOWN, stored(*pairs)) == []


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (stored(*WHOLE[:3]), "'d' was answered and is lost"),
        (stored(WHOLE[1], WHOLE[0], *WHOLE[2:]), "'a' is out of order"),
        (stored(*WHOLE[:2], WHOLE[3], WHOLE[2]), "'c' is out of order"),
        (stored(*WHOLE, WHOLE[3]), "'d' is doubled"),
        (stored(WHOLE[0], WHOLE[1], WHOLE[1], *WHOLE[2:]), "'b' is doubled"),
        (stored(*WHOLE)[:-1], "torn"),
        (stored(*WHOLE)[:2] + stored(*WHOLE)[3:], "torn"),
        (stored(*WHOLE[:3], ("d", "?")), "'d' has another answer than was told"),
        (stored(*WHOLE, ("x", "X")), "'x' was never sent"),
    ],
)
def test_a_planted_defect_is_named(messages: list[dict[str, str]], named: str) -> None:
    assert any(each.startswith(f"s: {named}") for each in differences(KNOWN, messages))


@pytest.mark.parametrize("pairs", [[], [("a", "A")]])
def test_a_turn_that_was_never_answered_is_an_error(pairs: list[tuple[str, str]]) -> None:
    assert differences(History("s", [Turn("a", 1)]), stored(*pairs)) == ["s: 'a' was never answered"]
