"""Revision 0004 adds the ids of answers to their messages, and the votes on answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("messages", sa.Column("answer_id", sa.Text))
    known = sa.text("answer_id IS NOT NULL")
    op.create_index("messages_answer", "messages", ["owner", "answer_id"], sqlite_where=known, postgresql_where=known)
    op.create_table(
        "feedback",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("session", NUMBER, sa.ForeignKey("sessions.number", name="feedback_session"), nullable=False),
        sa.Column("message", NUMBER, sa.ForeignKey("messages.number", name="feedback_message"), unique=True),
        sa.Column("model", sa.Text),
        sa.Column("version", sa.Text),
        sa.Column("digest", sa.Text),
        sa.Column("rating", sa.Integer, nullable=False),
        sa.Column("comment", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("other_id", sa.Text),
        sa.Column("other_session", NUMBER, sa.ForeignKey("sessions.number", name="feedback_other_session")),
        sa.Column("other_message", NUMBER, sa.ForeignKey("messages.number", name="feedback_other_message")),
        sa.Column("other_model", sa.Text),
        sa.Column("other_version", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("feedback_newest", "feedback", ["owner", "created_at", "id"])
    for column in ("session", "other_session", "other_message"):
        op.create_index(f"feedback_{column}_number", "feedback", [column])
