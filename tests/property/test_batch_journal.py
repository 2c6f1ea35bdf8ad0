"""A journal after a crash at any byte: what was acknowledged is there, once, and what was torn is gone for good."""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.generation.batches.journal import Entry, Journal, JournalInUse

entries = st.builds(
    Entry, st.integers(1, 6), st.booleans(), st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"") + b"\n")
)


def read(journal: Journal) -> dict[int, tuple[bool, bytes]]:
    return {
        number: (succeeded, output)
        for succeeded in (True, False)
        for number, output in journal.outputs(succeeded=succeeded)
    }


def of(written: list[Entry]) -> dict[int, tuple[bool, bytes]]:
    """What counts of entries: the first about each line."""
    return {each.number: (each.succeeded, each.output) for each in reversed(written)}


def check(before: list[Entry], torn: list[Entry], cut: int, garbage: bytes, after: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal"
        journal = Journal(path)
        journal.append(before)
        acknowledged = path.stat().st_size
        journal.append(torn)
        journal.close()
        data = path.read_bytes()
        kept = data[: acknowledged + cut % (len(data) - acknowledged + 1)]
        path.write_bytes(kept + garbage)
        journal = Journal(path)
        found = read(journal)
        # Garbage may be the very bytes that were torn off.
        whole = next(n for n in range(len(torn), -1, -1) if (kept + garbage).startswith(encoded(before + torn[:n])))
        assert found == of(before + torn[:whole])
        journal.append(after)
        assert read(journal) == of([*before, *torn[:whole], *after])
        assert journal.count(succeeded=True) == sum(ok for ok, _ in read(journal).values())
        journal.close()
        journal = Journal(path)
        assert read(journal) == of([*before, *torn[:whole], *after])
        journal.close()


def encoded(written: list[Entry]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory) / "journal")
        journal.append(written)
        journal.close()
        return (Path(directory) / "journal").read_bytes()


lists = st.lists(entries, max_size=4)
GARBAGE = st.sampled_from([b"", b"\0" * 50, b"\n", b"00000000 1 1 {}\n", b"zz"]) | st.binary(max_size=20)


@given(lists, lists, st.integers(0, 200), GARBAGE, lists)
def test_any_torn_end(before: list[Entry], torn: list[Entry], cut: int, garbage: bytes, after: list[Entry]) -> None:
    check(before, torn, cut, garbage, after)


def test_a_reader_that_trusts_line_ends_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda data: 0)
    with pytest.raises((AssertionError, ValueError)):
        check([Entry(1, True, b"{}\n")], [], 0, b"00000000 2 1 {}\n", [])


def test_what_is_not_durable_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    seen = list[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((journal.count(succeeded=True), 1 in journal)))
    journal.append([Entry(1, True, b"{}\n")])
    assert seen == [(0, False)] and journal.count(succeeded=True) == 1
    journal.close()


def test_the_counts_are_read_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    journal = Journal(tmp_path / "journal")
    journal.append(Entry(n, True, b"{}\n") for n in range(5000))

    def write() -> None:
        for n in range(5000, 15_000):
            journal.append([Entry(n, n % 2 == 0, b"{}\n")])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert 5000 <= journal.count(succeeded=True) <= 10_000 >= journal.count(succeeded=False)
    assert (journal.count(succeeded=True), journal.count(succeeded=False)) == (10_000, 5000)
    journal.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(JournalInUse):
        Journal(tmp_path / "journal")
    journal.close()
    Journal(tmp_path / "journal").close()
