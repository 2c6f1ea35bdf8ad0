"""The audit's chain: it verifies, every manner of changing it by hand is found and named, and several instances write
one chain."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from service.errors import Unavailable
from service.storage.audit import writing
from service.storage.audit.chain import CUT, Entry, Head, Row, Walk, after, entry, hash_of
from service.storage.audit.trail import Trail
from service.storage.audit.writing import Audit, Refusal
from service.storage.sessions import SessionStore
from tests.migrated import begin_with_copies
from tests.sessions import KINDS, new_database

begin_with_copies()


def an_entry(number: int = 0) -> Entry:
    return entry("keys.change", "done", {"scopes": ["generate"]}, subject=f"key_{number}", owner="key_1", name="가게")


def a_chain(length: int = 6) -> tuple[list[Row], Head]:
    rows = list(after(Head(0, ""), map(an_entry, range(length))))
    return rows, Head(rows[-1].number, rows[-1].hash)


def problems(rows: list[Row], head: Head, anchors: dict[int, str] | None = None) -> str:
    walk = Walk(anchors)
    for row in rows:
        walk.take(row)
    walk.end(head)
    return "\n".join(walk.problems)


def rehashed(row: Row) -> Row:
    return row._replace(hash=hash_of(row.number, row.entry, row.previous))


def forged(row: Row) -> Row:
    return row._replace(entry=an_entry(99))


def anew(rows: list[Row]) -> list[Row]:
    """A chain that another hand has made of it whole: it fits."""
    return list(after(Head(0, ""), [an_entry(99), *(row.entry for row in rows[1:])]))


def replaced(rows: list[Row], head: Head) -> tuple[list[Row], Head]:
    made = anew(rows)
    return made, Head(len(made), made[-1].hash)


Tampering = Callable[[list[Row], Head], tuple[list[Row], Head]]
TAMPERINGS: dict[str, tuple[Tampering, str]] = {
    "a row says something else": (
        lambda rows, head: ([*rows[:2], forged(rows[2]), *rows[3:]], head),
        "Row 3 was changed",
    ),
    "and its hash as well": (
        lambda rows, head: ([*rows[:2], rehashed(forged(rows[2])), *rows[3:]], head),
        "Row 3 was changed with its hash",
    ),
    "the last, and its hash": (
        lambda rows, head: ([*rows[:5], rehashed(forged(rows[5]))], head),
        "Row 6 is not the last one that was written",
    ),
    "the first, and its hash": (
        lambda rows, head: ([rehashed(forged(rows[0])), *rows[1:]], head),
        "Row 1 was changed with its hash",
    ),
    "a hash": (lambda rows, head: ([*rows[:2], rows[2]._replace(hash="0" * 64), *rows[3:]], head), "Row 3 was changed"),
    "a row is removed": (lambda rows, head: ([*rows[:2], *rows[3:]], head), "Row 3 is missing"),
    "three rows are": (lambda rows, head: ([rows[0], *rows[4:]], head), "Rows 2 to 4 are missing"),
    "and the rest moves up": (
        lambda rows, head: ([*rows[:2], *(row._replace(number=row.number - 1) for row in rows[3:])], head),
        "Row 3 was changed or moved",
    ),
    "the first is removed": (
        lambda rows, head: (rows[1:], head),
        "Row 1 is missing, and no row says that they were cut",
    ),
    "two change places": (
        lambda rows, head: ([rows[0], rows[2]._replace(number=2), rows[1]._replace(number=3), *rows[3:]], head),
        "Row 2 was changed or moved",
    ),
    "a row comes between": (
        lambda rows, head: (
            [*rows[:2], rehashed(forged(rows[2])), *(row._replace(number=row.number + 1) for row in rows[2:])],
            head,
        ),
        "Row 4 was changed or moved",
    ),
    "a row is added at the end": (
        lambda rows, head: ([*rows, *after(Head(6, rows[-1].hash), [an_entry()])], head),
        "Row 7 was added past the last one",
    ),
    "the end is cut off": (lambda rows, head: (rows[:4], head), "Rows 5 to 6 are missing at the end"),
    "all of it": (lambda rows, head: ([], head), "Rows 1 to 6 are missing at the end"),
    "the end with its head": (lambda rows, head: (rows[:4], Head(4, rows[3].hash)), "an anchor names row 6"),
    "the chain is made anew": (replaced, "Row 6 is not the one that the anchor names"),
}


@pytest.mark.parametrize(("tampering", "expected"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_each_tampering_is_found_and_named(tampering: Tampering, expected: str) -> None:
    rows, head = a_chain()
    assert problems(rows, head) == "" and problems(rows, head, {6: head.hash}) == ""
    changed, new_head = tampering(rows, head)
    assert expected in problems(changed, new_head, {6: head.hash})


def test_what_no_chain_shows_without_an_anchor() -> None:
    rows, head = a_chain()
    assert problems(rows[:4], Head(4, rows[3].hash)) == ""
    assert problems(*replaced(rows, head)) == ""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Trail]:
    store = await SessionStore.open(url, patience=60.0)  # writers queue, on a busy disk for long
    yield store.audit
    await store.close()


async def checked(trail: Trail) -> Walk:
    walk = Walk()
    walk.end(await trail.read(walk.take))
    return walk


@pytest.mark.parametrize("kind", KINDS)
async def test_instances_append_to_one_chain(kind: str, tmp_path: Path) -> None:
    url = new_database(kind, tmp_path)
    async with opened(url) as one, opened(url) as two, opened(url) as three:
        writers = [trail.add([an_entry(number)]) for number in range(20) for trail in (one, two, three)]
        written = await asyncio.gather(*writers)
        walk = await checked(one)
        assert (walk.problems, walk.rows) == ([], 60)
        assert sorted(row.number for rows in written for row in rows) == list(range(1, 61))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_database_refuses_changes_and_the_chain_shows_them(kind: str, tmp_path: Path) -> None:
    """What its triggers refuse, its owner can do all the same, who takes them away."""
    statements = {
        "UPDATE audit SET owner = 'key_9' WHERE number = 2": "Row 2 was changed or moved",
        "DELETE FROM audit WHERE number = 3": "Row 3 is missing",
    }
    triggers = {"sqlite": ("audit_unchanged", "audit_kept"), "postgresql": ("audit_kept",)}[kind]
    async with opened(new_database(kind, tmp_path)) as trail:
        await trail.add(map(an_entry, range(5)))
        for statement in (*statements, *(["TRUNCATE audit"] if kind == "postgresql" else [])):
            with pytest.raises(DBAPIError, match="rows of the audit are not changed"):
                async with trail._database.writing() as connection:
                    await connection.execute(text(statement))
        assert (await checked(trail)).problems == []
        async with trail._database.writing() as connection:
            for name in triggers:
                await connection.execute(text(f"DROP TRIGGER {name}{' ON audit' if kind == 'postgresql' else ''}"))
            for statement in statements:
                await connection.execute(text(statement))
        found = "\n".join((await checked(trail)).problems)
        assert all(said in found for said in statements.values()), found


@pytest.mark.parametrize("kind", KINDS)
async def test_old_rows_are_cut_and_a_row_says_so(kind: str, tmp_path: Path) -> None:
    async with opened(new_database(kind, tmp_path)) as trail:
        old = [Entry(at=number, action="keys.change", outcome="done") for number in range(5)]
        await trail.add([*old, an_entry()])
        now = int(datetime.now(UTC).timestamp() * 1e6)

        def told(last: str, detail: dict[str, object]) -> Entry:
            return entry(CUT, "done", detail, subject=last, owner="kim")

        before = list[Row]()
        await trail.read(before.append)
        assert (await trail.cut(3, told))[0] == 3
        assert await trail.cut(3, told) == (0, None)
        gone, told_in = await trail.cut(now - 60_000_000, told)
        walk = await checked(trail)
        assert (gone, walk.problems, walk.rows) == (2, [], 3)
        assert walk.cut.startswith("Rows 1 to 5 are cut, says row 8, by kim at 20")
        rows = list[Row]()
        head = await trail.read(rows.append)
        assert told_in == head
        assert problems(rows, head, {row.number: row.hash for row in before}) == ""
        assert "Row 8 cut another row 5" in problems(rows, head, {5: "0" * 64})
        worn = [each._replace(entry=msgspec.structs.replace(each.entry, detail="tea")) for each in rows]
        assert "Row 8 was changed" in problems(worn, head)
        assert "no row says that they were cut" in problems([row for row in rows if row.entry.action != CUT], head)


async def test_rows_wait_for_a_database_that_is_away(tmp_path: Path) -> None:
    told = list[tuple[int, int]]()
    async with opened(new_database("sqlite", tmp_path)) as trail:
        is_away = True

        async def found() -> Trail:
            if is_away:
                raise Unavailable("away", retry_after=1)
            return trail

        audit = Audit(found, "one", lambda *numbers: told.append(numbers))
        with pytest.raises(Unavailable):
            await audit.require(an_entry())
        await audit.add(an_entry(1))
        await audit.add(an_entry(2))
        assert told[-1] == (0, 2)
        is_away = False
        await audit.add(an_entry(3))
        assert told[-1] == (3, 0)
        walk = await checked(trail)
        assert walk.problems == [] and walk.last is not None and walk.last.entry.subject == "key_3"


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_write_whose_caller_is_cancelled_loses_no_row_and_doubles_none(
    tmp_path: Path, comes_back: bool
) -> None:
    """Where the database comes back, each is one row with its anchor; else the log has what was lost."""
    asked, may_go_on = asyncio.Event(), asyncio.Event()
    async with opened(new_database("sqlite", tmp_path)) as trail:

        async def found() -> Trail:
            asked.set()
            await may_go_on.wait()
            if comes_back:
                return trail
            raise Unavailable("away", retry_after=1)

        audit = Audit(found, "one")
        adding = asyncio.create_task(audit.add(an_entry(1)))
        await asked.wait()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        with capture_logs() as logged:
            closing_ = asyncio.create_task(audit.close())
            await asyncio.sleep(0)
            may_go_on.set()
            await closing_
        told = [(each["event"], each["subject"]) for each in logged]
        assert told == [("audit" if comes_back else "audit_row_lost", "key_1")]
        assert (await checked(trail)).rows == comes_back


async def test_refusals_of_a_minute_are_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_COUNTED", 3)
    async with opened(new_database("sqlite", tmp_path)) as trail:

        async def found() -> Trail:
            return trail

        audit = Audit(found, "one")
        for number in range(1000):
            audit.wrong_key(401, f"10.0.0.{number % 10}")
        audit.count(Refusal("keys.create", 403, owner="key_1"))
        await audit.flush()
        audit.wrong_key(401, "10.1.1.1")
        await audit.close()
        rows, _ = await trail.all({}, None, None, None, 100)
        counted = {(row.entry.peer, row.entry.detail) for row in rows}
        assert (
            len(rows) == 6
            and ("10.1.1.1", '{"status":401,"times":1}') in counted
            and ("", '{"status":401,"times":700}') in counted
        )
        assert all(row.entry.outcome == "refused" for row in rows)


def test_a_text_that_no_database_takes_is_taken(tmp_path: Path) -> None:
    made = entry("keys.change", "done", subject="a\x00\ud800" + "x" * 999)
    assert made.subject.startswith("a?x") and len(made.subject) <= 200
    with closing(sqlite3.connect(tmp_path / "any.db")) as connection:
        connection.execute("SELECT ?", (made.subject,))
