"""The tables of shared records. They lie in the session database, and have no owner: they are the operators'.

    record_state   one row: which database this is, and the number of the last change
    records        journals (each entry a row) and documents (the last row of a name), in the order of their changes
    instances ─< leases   who is there, by heartbeat, and the versions that each uses

A change takes the next number while it holds the row of `record_state`, so numbers are in the order of commits and a
reader that has seen number n has seen all below it. Another kind of record needs no other table.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Index, Integer, MetaData, Table, Text

metadata = MetaData()

record_state = Table(
    "record_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("database_id", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

records = Table(
    "records",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("content", Text),
    Index("records_name", "kind", "name"),
)
"""`content` is null where a document was removed."""

instances = Table(
    "instances",
    metadata,
    Column("id", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("software", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("beat_at", DateTime(timezone=True), nullable=False),
    Column("state", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("instance", Text, ForeignKey("instances.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Index("leases_version", "name", "version"),
)
