"""The receipt: its numbers, its wire form, and its stored form, from whose numbers the lists of names come."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from service.context.partition import (
    NEAREST,
    Counts,
    Partition,
    nearest,
    numbered,
    ranges_of,
    renumbered,
    stored_form,
    wire_form,
)
from service.context.receipt import Cut, Parts, Receipt

PARTS = Parts(template=12, system=40, history=1290, current=90)


def test_the_wire_form_is_the_documented_one() -> None:
    receipt = Receipt(
        policy="window",
        window=2048,
        reserved_output=128,
        parts=PARTS,
        kept=("m_1", "m_8"),
        dropped=("m_2",),
        dropped_tokens=310,
        cut=Cut("m_8", 400),
        notes=("input normalised to NFC",),
    )
    assert receipt.with_cached(1270).to_dict() == {
        "policy": "window",
        "window": 2048,
        "reserved_output": 128,
        "used": 1432,
        "free": 488,
        "truncated": True,
        "parts": {"template": 12, "system": 40, "documents": 0, "summary": 0, "history": 1290, "current": 90},
        "kept": ["m_1", "m_8"],
        "dropped": ["m_2"],
        "summarised": [],
        "counts": {"kept": 2, "dropped": 1, "summarised": 0},
        "dropped_tokens": 310,
        "cached_tokens": 1270,
        "cut": {"at": "m_8", "stable_for_tokens": 400},
        "notes": ["input normalised to NFC"],
    }


def test_documents_are_listed_where_there_were_any() -> None:
    receipt = Receipt("window", 100, 10, Parts(documents=5), documents_kept=("a",), documents_dropped=("b",))
    assert receipt.to_dict()["documents"] == {"kept": ["a"], "dropped": ["b"]}
    assert receipt.truncated


def test_every_way_to_lose_something_is_truncation() -> None:
    for lost in ({"dropped": ("m_0",)}, {"summarised": ("m_0",)}, {"dropped_tokens": 1}):
        assert Receipt("window", 100, 10, PARTS, **lost).truncated


POSITIONS = st.lists(st.integers(-1, 3000), min_size=1, max_size=60, unique=True).map(sorted)


def named(positions: list[int]) -> list[tuple[int, str]]:
    return [(at, "system" if at < 0 else f"m_{at}") for at in positions]


def wire_receipt(kept: list[str], dropped: list[str], summarised: list[str], cut: str | None) -> dict[str, object]:
    counts = {"kept": len(kept), "dropped": len(dropped), "summarised": len(summarised)}
    lists = {"kept": kept, "dropped": dropped, "summarised": summarised, "counts": counts}
    return {"policy": "window", **lists, "dropped_tokens": 3, "cut": cut and {"at": cut, "stable_for_tokens": 7}}


@settings(max_examples=300)
@given(data=st.data())
def test_a_stored_receipt_is_read_as_it_was_written(data: st.DataObject) -> None:
    positions = data.draw(POSITIONS)
    kept = {at for at in positions if data.draw(st.booleans()) or at < 0}
    cut = data.draw(st.none() | st.sampled_from(positions))
    before = data.draw(st.sampled_from([0, *positions]))
    names = dict(named(positions))
    lists = [
        [names[at] for at in positions if at in kept],
        [names[at] for at in positions if at not in kept and at >= before],
        [names[at] for at in positions if at not in kept and at < before],
    ]
    wire = wire_receipt(lists[0], lists[1], lists[2], None if cut is None else names[cut])
    partition = Partition(ranges_of(sorted(kept)), Counts(*map(len, lists)), (), before, cut, min(positions[0], 0))
    stored = stored_form(wire, partition)
    assert not any(name.startswith("m_") for name in str(stored).split("'"))
    assert wire_form(stored, [(-1, "system"), *named([at for at in positions if at >= 0])]) == wire

    def place(position: int) -> int:
        return -1 if position < 0 else bisect_left([at for at in positions if at >= 0], position)

    moved = [(place(at), name) for at, name in named(positions)]
    assert wire_form(renumbered(stored, place), moved) == wire
    old = {key: value for key, value in wire.items() if key != "counts"}
    assert wire_form(numbered(old, {name: at for at, name in named(positions) if at >= 0}), named(positions)) == wire


def test_a_long_chat_s_lists_hold_those_nearest_to_the_cut() -> None:
    many = named(list(range(2000)))
    assert [nearest(many, cut)[0][0] for cut in (None, 0, 1000, 1999)] == [2000 - NEAREST, 0, 744, 2000 - NEAREST]
    partition = Partition(((1000, 2000),), Counts(1000, 1000), cut=1000)
    lists = partition.lists(many)
    assert lists.dropped == tuple(f"m_{at}" for at in range(744, 1000))
    assert lists.kept == tuple(f"m_{at}" for at in range(1000, 1256))
    near = [each for each in many if 488 <= each[0] < 1512]
    assert partition.lists(near) == lists, "and no more need be read"


def test_what_is_no_receipt_is_shown_as_it_is() -> None:
    for value in ({"a": 1}, {"positions": 3}, {"positions": {"kept": [[0]]}}):
        assert wire_form(value, named([0])) == value
        assert renumbered(value, lambda at: at) == value
    assert numbered({"kept": ["m_0"]}, {"m_0": 0}) == {"kept": ["m_0"]}
