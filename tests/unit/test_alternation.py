"""An expression of many texts matches what a flat alternation of them matches, the longest first."""

from __future__ import annotations

import re
from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.text.alternation import longest_of

TEXTS = st.text("ab<>^]-\\\n.가", max_size=12)


def flat(texts: list[str]) -> str:
    return "|".join(sorted(map(re.escape, filter(None, texts)), key=len, reverse=True)) or "(?!)"


@given(texts=st.lists(TEXTS, max_size=20), around=st.lists(TEXTS, max_size=8))
@example(texts=["\n" * size for size in range(200)], around=[" ", "\n" * 150])
@example(texts=["a", "ab", "abab"], around=[])
def test_it_matches_what_a_flat_one_matches(texts: list[str], around: list[str]) -> None:
    for text in ("".join(around), "".join((*around, *texts)), "".join((*reversed(texts), *around))):
        assert re.split(f"({longest_of(texts)})", text) == re.split(f"({flat(texts)})", text)


@pytest.mark.parametrize("token", ["a" * 100_000, "\n" * 31])
def test_long_texts_and_runs_compile(token: str) -> None:
    texts = [token, *(token[:size] for size in range(1, 31))]
    found = re.compile(longest_of(texts)).match(token + "a")
    assert found and found[0] == max((text for text in texts if (token + "a").startswith(text)), key=len)


def test_a_place_costs_nothing_for_the_texts_that_it_does_not_begin() -> None:
    quoting, begun = re.compile(longest_of(f"<|reserved_{number}|>" for number in range(6000))), thread_time()
    assert not quoting.findall("<|" * 100_000)
    assert thread_time() - begun < 1
