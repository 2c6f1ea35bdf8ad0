"""Revision 0006 adds the stored answers: responses that their clients read again and go on from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("previous", sa.Text),
        sa.Column("thread", sa.Text, nullable=False),
        sa.Column("asked", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("answers_owner", "answers", ["owner", "number"])
    op.create_index("answers_thread", "answers", ["owner", "thread"])
    op.create_index("answers_expiry", "answers", ["expires_at"])
