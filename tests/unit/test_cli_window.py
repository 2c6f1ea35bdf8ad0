"""A receipt as a bar: exact widths on narrow and wide terminals, and words in cells, not in characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.cells import cell_len

from service.cli.window import bar, cells, left_out, picture, shortened
from service.cli.wire import Receipt

PARTS = {"template": 12, "system": 60, "documents": 0, "summary": 0, "history": 900, "current": 28}


def receipt(**changes: object) -> Receipt:
    fields: dict[str, object] = {"policy": "window", "window": 2048, "reserved_output": 128, "used": 1000, "free": 920}
    return Receipt(**{**fields, "parts": PARTS, "cached_tokens": 640, **changes})  # type: ignore[arg-type]


@given(some.lists(some.integers(0, 200_000), min_size=1, max_size=8).filter(any), some.integers(8, 300))
def test_cells_sum_to_the_width_and_nothing_disappears(counts: list[int], width: int) -> None:
    shown = cells(counts, width)
    assert sum(shown) == width
    assert [size > 0 for size in shown] == [count > 0 for count in counts]
    by_size = sorted(zip(counts, shown, strict=True))
    assert [size for _, size in by_size] == sorted(shown) or len(set(counts)) < len(counts)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, "[tsss" + "h" * 33 + "cc" + "." * 33 + "rrrrrr]"),
        (40, "[tss" + "h" * 15 + "cc" + "." * 15 + "rrr]"),
        (16, "[tshhhhhc.....r]"),
    ],
)
def test_the_bar(width: int, shown: str) -> None:
    assert bar(receipt(), width).plain == shown
    assert len(shown) == width


def test_a_summary_is_no_system_prompt() -> None:
    shown = bar(receipt(parts={**PARTS, "summary": 400, "documents": 300}, used=1700, free=220), 40).plain
    assert {letter: shown.count(letter) > 0 for letter in "tsdmhc.r"} == dict.fromkeys("tsdmhc.r", True)


@pytest.mark.parametrize("width", [200, 100, 40])
def test_lines_fit_and_hold_every_number(width: int) -> None:
    lines = [line.plain for line in picture(receipt(), width)]
    assert len(lines[0]) == min(width, 80)
    assert all(cell_len(line) <= width for line in lines)
    assert " · ".join(lines[1:]) == (
        "t 12 template · s 60 system · h 900 history · c 28 current · "
        "1,000 of 2,048 · 128 reserved · 920 free · 640 cached"
    )
    assert (len(lines) == 2) == (width == 200)


def test_every_part_has_its_own_colour() -> None:
    spans = {str(span.style) for span in bar(receipt(), 80).spans}
    assert len(spans) == 6


def test_what_was_left_out_in_one_line() -> None:
    gone = receipt(dropped=("m_a", "m_b", "m_c"), dropped_tokens=1310)
    assert left_out(gone, (), "안녕", 100) == 'left out: 3 messages, 1,310 tokens, up to "안녕"'
    since = left_out(gone, ("m_a", "m_b"), "제 이름은 김무슬이에요. " * 9, 100)
    assert since.endswith('…", 1 of them from now on') and cell_len(since) <= 100
    assert left_out(receipt(dropped=("m_a",), dropped_tokens=9), (), "x", 80).startswith("left out: 1 message, 9 ")


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("hello", 5, "hello"),
        ("hello world", 8, "hello w…"),
        ("도시락 하나", 11, "도시락 하나"),
        ("도시락 하나", 10, "도시락 하…"),
        ("도시락 하나", 9, "도시락…"),
        ("a\n\n b", 9, "a b"),
    ],
)
def test_words_are_shortened_by_cells(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown
    assert cell_len(shown) <= width
