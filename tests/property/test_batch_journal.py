"""A journal after a crash at any byte: what was acknowledged is there, once, and what was torn is gone for good."""

from __future__ import annotations

import tempfile
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


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(JournalInUse):
        Journal(tmp_path / "journal")
    journal.close()
    Journal(tmp_path / "journal").close()
