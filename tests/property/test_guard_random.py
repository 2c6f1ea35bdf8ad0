"""Any text, any cuts, any actions: what a guard gives out is what it gives for the whole text at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.generation.guard import Action, Grams, Guard, Rule
from service.generation.guard.configuration import PATTERNS
from service.generation.guard.corpus import Canaries, CanaryScanner, CorpusScanner
from service.generation.guard.patterns import AddressScanner
from service.generation.guard.rules import LABELS

CANARIES = Canaries(["aa1aa1", "a1a1a1a", "비밀번호 12", "12-34-56"])
PROTECTED = "the recipe of our shop is a secret and two spoons of soy sauce"
GRAMS = Grams.of([PROTECTED], b"salt")
SCANNERS = {**PATTERNS, "canary": lambda: CanaryScanner(CANARIES), "corpus": lambda: CorpusScanner(GRAMS)}
PARTS = [
    *"a1 -.@()+０가bnu\n\\",
    "\\n",
    "\\u0040",
    "\\u00",
    "a\\u0040b.com",
    "010",
    "1234",
    "4111",
    "111",
    "900101",
    "123456",
    "82",
    "02",
    "a@b.com",
    "aa1",
    "비밀번호",
    "12-34-56",
    PROTECTED[:40],
    PROTECTED[20:],
    "4111-1111-1111-1111",
    "0.4111111111111111",
    "010-1234-5678",
    "900101-1234568",
    "415-555-2671",
    "x" * 70,
]
texts = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
cuts = st.lists(st.integers(1, 7), min_size=1, max_size=30)
actions = st.fixed_dictionaries({}, optional={name: st.sampled_from(list(Action)) for name in LABELS})


def guard(chosen: dict[str, Action]) -> Guard:
    return Guard([(Rule(name, chosen[name]), SCANNERS[name]) for name in LABELS if name in chosen])


def cut(text: str, widths: list[int]) -> list[str]:
    parts, at = [], 0
    for width in widths * (len(text) + 1):
        if at >= len(text):
            break
        parts.append(text[at : at + width])
        at += width
    return parts


@settings(max_examples=600, deadline=None)
@given(text=texts, widths=cuts, chosen=actions)
def test_streamed_is_whole(text: str, widths: list[int], chosen: dict[str, Action]) -> None:
    once, streamed = guard(chosen).text_filter(), guard(chosen).text_filter()
    whole = once.push(text) + once.finish()
    parts = cut(text, widths)
    assert "".join([*map(streamed.push, parts), streamed.finish()]) == whole
    assert streamed.stopped == once.stopped
    if not once.stopped:
        assert streamed.findings == once.findings
    assert {each.rule for each in once.findings} <= chosen.keys()


@settings(max_examples=300, deadline=None)
@given(text=texts, widths=cuts)
def test_flags_are_what_masks_would_be_and_delay_nothing(text: str, widths: list[int]) -> None:
    flagging, masking = (guard(dict.fromkeys(LABELS, action)).text_filter() for action in (Action.FLAG, Action.MASK))
    for part in cut(text, widths):
        assert flagging.push(part) == part
    assert flagging.finish() == ""
    masked = masking.push(text) + masking.finish()
    assert [(each.rule, each.count) for each in flagging.findings] == [
        (each.rule, each.count) for each in masking.findings
    ]
    assert bool(masking.findings) == (masked != text)


@settings(max_examples=300, deadline=None)
@given(text=texts, widths=cuts, chosen=actions)
def test_pieces_of_the_text_can_be_taken_one_by_one(text: str, widths: list[int], chosen: dict[str, Action]) -> None:
    """As tokens take them: each up to its own end, once that is shown."""
    text_filter, whole = guard(chosen).text_filter(), guard(chosen).text_filter()
    waiting, taken, fed = list[int](), list[str](), 0
    for part in cut(text, widths):
        text_filter.feed(part)
        fed += len(part)
        waiting.append(fed)
        while waiting and waiting[0] <= text_filter.shown:
            taken.append(text_filter.take(waiting.pop(0)))
    text_filter.end()
    taken += [text_filter.take(end) for end in waiting]
    assert "".join(taken) == whole.push(text) + whole.finish()


@settings(max_examples=300, deadline=None)
@given(text=texts, widths=cuts)
def test_addresses_are_decided_once(text: str, widths: list[int]) -> None:
    """The scanner by itself: each match once, none before what was said to be certain."""
    scanner, found, seen = AddressScanner(), list[tuple[int, int]](), ""
    for part in [*cut(text, widths), ""]:
        before, new = scanner.certain, len(seen)
        seen += part
        spans = scanner.scan(seen, 0, new, final=not part)
        assert all(start >= before for start, _ in spans)
        assert scanner.certain >= before
        found += spans
    assert len(found) == len(set(found))
    assert found == AddressScanner().scan(text, 0, 0, final=True)
