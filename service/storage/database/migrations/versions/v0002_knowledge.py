"""Revision 0002 adds summaries of sessions, and the knowledge base: documents, their passages and the passages'
index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "summaries",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("session", NUMBER, sa.ForeignKey("sessions.number", name="summaries_session"), primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "knowledge",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text),
        sa.Column("title", sa.Text),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("knowledge_newest", "knowledge", ["owner", "created_at", "id"])
    op.create_index("knowledge_session", "knowledge", ["session_id"])
    op.create_table(
        "passages",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("knowledge", NUMBER, sa.ForeignKey("knowledge.number", name="passages_knowledge"), nullable=False),
        sa.Column("session_id", sa.Text),
        sa.Column("content", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("passages_knowledge_number", "passages", ["knowledge"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE passage_grams USING fts5(grams, content='', detail=none, tokenize='ascii')")
        return
    op.create_table(
        "passage_grams",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("grams", sa.ARRAY(sa.Integer), nullable=False),
    )
    op.create_index("passage_grams_all", "passage_grams", ["grams"], postgresql_using="gin")
