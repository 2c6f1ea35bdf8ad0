"""Search finds the texts that contain a query, by an index of what they hold: their characters and their pairs of
neighbours, as 32-bit numbers, the grams. Pairs find Korean words of two syllables, which indexes of words or of three
characters miss.

    SQLite       an FTS5 table without content: hexadecimal numbers as words, lists of rows and nothing else
    PostgreSQL   arrays of the numbers under a GIN index

The index may propose rows that do not match, but never misses a row that does; the texts themselves decide, in the same
way for every database. So two characters with the same number do no harm.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    column,
    delete,
    insert,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from service.storage.database.search_index import Indexed, postgresql
from service.storage.sessions.owned import Owned
from service.storage.sessions.values import Json
from service.text.grams import fold


def contains(text: str, needle: str) -> bool:
    """Returns whether `text`, folded, contains the folded `needle`."""
    return needle in fold(text)


def grams_of(owner: str, text: str) -> set[int]:
    """Returns all grams that `text` can be found by. They include the owner, so that a search reads one owner's
    entries."""
    found = {_signed(zlib.crc32(owner.encode()))}
    for word in fold(text).split():
        found.update(_pair(character, "\x00") for character in word)
        found.update(map(_pair, word, word[1:]))
    return found


def words_of(title: str | None, metadata: Json) -> list[str]:
    """Returns the texts of a session itself: its title, the keys of its metadata and their values."""
    found = [title] if title else []
    _collect(metadata, found)
    return found


def _collect(value: object, words: list[str]) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            words.append(str(key))
            _collect(each, words)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, words)
    elif value is not None:
        words.append(str(value))


def _pair(first: str, second: str) -> int:
    return _signed((ord(first) & 0xFFFF) << 16 | (ord(second) & 0xFFFF))


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


Result = TypeVar("Result")
_SHORT = 4096  # characters whose grams take a millisecond or two
_SMALLEST_BATCH, _LARGEST_BATCH = 50, 1000  # rows whose texts are read at once; a rare match needs many


async def add(connection: AsyncConnection, name: Indexed, owner: str, texts: Mapping[int, str]) -> None:
    """Indexes each text under its row's number."""
    if not texts:
        return
    if connection.dialect.name == "sqlite":
        statement = text(f"INSERT INTO {name}(rowid, grams) VALUES (:number, :grams)")
        await connection.execute(statement, await _beside(texts.values(), partial(_entries, owner, texts)))
    else:
        rows = await _beside(texts.values(), partial(_arrays, owner, texts))
        await connection.execute(insert(postgresql.tables[name]), rows)


async def remove(connection: AsyncConnection, name: Indexed, owner: str, texts: Mapping[int, str]) -> None:
    """Takes texts out of the index; `texts` are exactly what was added under these numbers."""
    if not texts:
        return
    if connection.dialect.name == "sqlite":
        statement = text(f"INSERT INTO {name}({name}, rowid, grams) VALUES ('delete', :number, :grams)")
        await connection.execute(statement, await _beside(texts.values(), partial(_entries, owner, texts)))
    else:
        table = postgresql.tables[name]
        await connection.execute(delete(table).where(table.c.number == bindparam("n")), [{"n": n} for n in texts])


async def search(
    connection: AsyncConnection, mine: Owned, newest: Select[Any], query: str, limit: int
) -> list[Row[Any]]:
    """Returns the first `limit` rows of `newest` that have `query` in their title, their metadata or a message.
    `newest` is a statement over the owner's sessions in the order of the list."""
    needle = fold(query)
    grams = grams_of(mine.owner, needle)
    its, of_message = mine.columns("sessions"), mine.columns("messages")
    proposed = _matches(connection, "message_grams", of_message.number, grams)
    spoken = mine.select("messages", "session").where(proposed)
    newest = newest.where(or_(_matches(connection, "session_grams", its.number, grams), its.number.in_(spoken)))
    matching: list[Row[Any]] = []
    looked_at, size = 0, _SMALLEST_BATCH
    while len(matching) < limit:
        batch = (await connection.execute(newest.offset(looked_at).limit(size))).all()
        numbers = [row.number for row in batch]
        said = mine.select("messages", "session", "content").where(of_message.session.in_(numbers), proposed)
        found = (await connection.execute(said)).all()
        heard = await _beside((content for _, content in found), partial(_containing, needle, found))
        for row in batch:
            if row.number in heard or any(contains(each, needle) for each in words_of(row.title, row.metadata)):
                matching.append(row)
        if len(batch) < size:
            break
        looked_at, size = looked_at + size, min(2 * size, _LARGEST_BATCH)
    return matching[:limit]


_VISIBLE: Final = (
    "EXISTS (SELECT 1 FROM passages AS its WHERE its.number = passage_grams.{number} "
    "AND (its.session_id IS NULL OR its.session_id = :session))"
)


async def alike_passages(
    connection: AsyncConnection, owner: str, question: str, session_id: str | None, most: int
) -> list[int]:
    """Returns the numbers of passages that share pairs with `question`, the most alike first: by BM25 in SQLite, by the
    number of shared pairs in PostgreSQL. They are of the owner's shared documents and of those of the session."""
    grams = sorted(grams_of(owner, question) - grams_of(owner, ""))
    if not grams:
        return []
    if connection.dialect.name == "sqlite":
        match = f"{_words(grams_of(owner, ''))} AND ({_words(grams).replace(' ', ' OR ')})"
        ordered = text(
            f"SELECT rowid FROM passage_grams WHERE passage_grams MATCH :match AND {_VISIBLE.format(number='rowid')} "
            "ORDER BY rank LIMIT :most"
        )
        values: dict[str, object] = {"match": match, "session": session_id, "most": most}
        return list((await connection.execute(ordered, values)).scalars())
    ordered = text(
        "SELECT number FROM passage_grams WHERE grams @> :owner AND grams && :grams "
        f"AND {_VISIBLE.format(number='number')} ORDER BY "
        "(SELECT count(*) FROM unnest(grams) AS gram WHERE gram = ANY(:grams)) DESC, number DESC LIMIT :most"
    ).bindparams(
        bindparam("owner", type_=ARRAY(Integer)),
        bindparam("grams", type_=ARRAY(Integer)),
        bindparam("session", type_=Text),
    )
    values = {"owner": sorted(grams_of(owner, "")), "grams": grams, "session": session_id, "most": most}
    return list((await connection.execute(ordered, values)).scalars())


def _matches(
    connection: AsyncConnection, name: Indexed, number: ColumnElement[Any], grams: set[int]
) -> ColumnElement[bool]:
    if connection.dialect.name == "sqlite":
        statement = text(f"SELECT rowid FROM {name} WHERE {name} MATCH :{name}")
        return number.in_(statement.bindparams(**{name: _words(grams)}).columns(column("rowid", BigInteger)))
    table = postgresql.tables[name]
    return number.in_(table.select().with_only_columns(table.c.number).where(table.c.grams.contains(sorted(grams))))


async def _beside(texts: Iterable[str], make: Callable[[], Result]) -> Result:
    """Returns what `make` makes of these texts; of long ones in a thread, so that the event loop goes on meanwhile."""
    if sum(map(len, texts)) <= _SHORT:
        return make()
    return await asyncio.to_thread(make)


def _entries(owner: str, texts: Mapping[int, str]) -> list[dict[str, object]]:
    return [{"number": number, "grams": _words(grams_of(owner, each))} for number, each in texts.items()]


def _arrays(owner: str, texts: Mapping[int, str]) -> list[dict[str, object]]:
    return [{"number": number, "grams": sorted(grams_of(owner, each))} for number, each in texts.items()]


def _containing(needle: str, found: Iterable[Row[Any]]) -> set[int]:
    return {row.session for row in found if contains(row.content, needle)}


def _words(grams: Iterable[int]) -> str:
    return " ".join(f"{gram & 0xFFFFFFFF:08x}" for gram in sorted(grams))
