"""Revision 0001 adds sessions, messages, idempotency records, and the search index of each database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("system", sa.Text),
        sa.Column("policy", sa.Text),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("message_count", sa.Integer, nullable=False),
        sa.Column("next_position", sa.Integer, nullable=False),
        sa.Column("ttl_seconds", sa.Double, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("cut", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("sessions_newest", "sessions", ["owner", "created_at", "id"])
    op.create_index("sessions_expiry", "sessions", ["expires_at"])
    op.create_table(
        "messages",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("session", NUMBER, sa.ForeignKey("sessions.number", name="messages_session"), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("context", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("version", sa.Text),
        sa.Column("digest", sa.Text),
        sa.Column("usage", sa.Text),
        sa.Column("finish_reason", sa.Text),
        sa.UniqueConstraint("session", "position", name="messages_order"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
        sa.Column("session_id", sa.Text),
        sa.Column("response", sa.LargeBinary),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    op.create_index("idempotency_expiry", "idempotency", ["expires_at"])
    op.create_index("idempotency_session", "idempotency", ["session_id"])
    for name in ("session_grams", "message_grams"):
        if op.get_bind().dialect.name == "sqlite":
            op.execute(f"CREATE VIRTUAL TABLE {name} USING fts5(grams, content='', detail=none, tokenize='ascii')")
        else:
            op.create_table(
                name,
                sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
                sa.Column("grams", sa.ARRAY(sa.Integer), nullable=False),
            )
            op.create_index(f"{name}_all", name, ["grams"], postgresql_using="gin")
