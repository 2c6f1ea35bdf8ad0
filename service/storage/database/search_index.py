"""The search index has a table for each kind of text: in PostgreSQL these, in SQLite one of FTS5 that a migration
makes."""

from __future__ import annotations

from typing import Final, Literal

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table
from sqlalchemy.dialects.postgresql import ARRAY

Indexed = Literal["session_grams", "message_grams", "passage_grams"]
INDEXES: Final[tuple[Indexed, ...]] = ("session_grams", "message_grams", "passage_grams")

postgresql: Final = MetaData()
for _name in INDEXES:
    Table(
        _name,
        postgresql,
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("grams", ARRAY(Integer), nullable=False),
        Index(f"{_name}_all", "grams", postgresql_using="gin"),
    )
