"""The receipt's numbers and its wire form."""

from __future__ import annotations

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


def test_what_was_sent_whole_is_not_truncated() -> None:
    body = Receipt("refuse", 2048, 128, PARTS, kept=("m_0",)).to_dict()
    assert (body["truncated"], body["cut"], body["cached_tokens"], "documents" in body) == (False, None, 0, False)


def test_documents_are_listed_where_there_were_any() -> None:
    receipt = Receipt("window", 100, 10, Parts(documents=5), documents_kept=("a",), documents_dropped=("b",))
    assert receipt.to_dict()["documents"] == {"kept": ["a"], "dropped": ["b"]}
    assert receipt.truncated


def test_every_way_to_lose_something_is_truncation() -> None:
    for lost in ({"dropped": ("m_0",)}, {"summarised": ("m_0",)}, {"dropped_tokens": 1}):
        assert Receipt("window", 100, 10, PARTS, **lost).truncated


def test_the_cached_count_changes_nothing_else() -> None:
    receipt = Receipt("refuse", 2048, 128, PARTS)
    before, after = receipt.to_dict(), receipt.with_cached(64).to_dict()
    assert {key for key in before if before[key] != after[key]} == {"cached_tokens"}
