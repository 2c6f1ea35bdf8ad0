"""The tables of the audit. They have no owner: they are the operators'.

audit        who did what and when; its triggers refuse every change, and a deletion that no row of a cut allows
audit_head   one row: number and hash of the last row, which a writer locks
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text

metadata = MetaData()

audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("action", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("peer", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Index("audit_action", "action", "number"),
    Index("audit_time", "at"),
)
"""`at` is microseconds since 1970, `detail` JSON as it was written: the hash is of these texts."""

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
)
