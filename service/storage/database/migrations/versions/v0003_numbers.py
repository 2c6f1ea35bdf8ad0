"""Revision 0003 stores receipts as numbers, a summary's reach, and the revision at which a session was last edited."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from service.context.partition import numbered

revision = "0003"
down_revision = "0002"

_BATCH = 200

sessions = sa.table("sessions", sa.column("number"), sa.column("cut", sa.Text))
messages = sa.table(
    "messages",
    sa.column("number"),
    sa.column("id"),
    sa.column("session"),
    sa.column("position"),
    sa.column("context", sa.Text),
)


def upgrade() -> None:
    op.add_column("sessions", sa.Column("edited", sa.Integer, nullable=False, server_default="0"))
    op.add_column("summaries", sa.Column("before", sa.Integer))
    op.create_index(
        "messages_pinned",
        "messages",
        ["session", "position"],
        sqlite_where=sa.text("pinned = 1"),
        postgresql_where=sa.text("pinned"),
    )
    connection = op.get_bind()
    for number, cut in connection.execute(sa.select(sessions.c.number, sessions.c.cut)).all():
        _number_session(connection, number, cut)


def _number_session(connection: sa.Connection, number: int, cut: str | None) -> None:
    named = sa.select(messages.c.id, messages.c.position).where(messages.c.session == number)
    positions = {row.id: row.position for row in connection.execute(named)}
    if cut is not None:
        changed = _cut(json.loads(cut), positions)
        connection.execute(sa.update(sessions).where(sessions.c.number == number).values(cut=changed))
    receipts = sa.select(messages.c.number).where(messages.c.session == number, messages.c.context.is_not(None))
    found = list(connection.execute(receipts).scalars())
    for first in range(0, len(found), _BATCH):
        _number_receipts(connection, found[first : first + _BATCH], positions)


def _number_receipts(connection: sa.Connection, numbers: list[int], positions: dict[str, int]) -> None:
    """Converts a few receipts at a time: they may be long."""
    query = sa.select(messages.c.number, messages.c.context).where(messages.c.number.in_(numbers))
    for number, context in connection.execute(query).all():
        stored = json.dumps(numbered(json.loads(context), positions), ensure_ascii=False)
        if stored != context:
            connection.execute(sa.update(messages).where(messages.c.number == number).values(context=stored))


def _cut(cut: dict[str, Any], positions: dict[str, int]) -> str | None:
    at = positions.get(str(cut.get("at")))
    return None if at is None else json.dumps({**cut, "at": at}, ensure_ascii=False)
