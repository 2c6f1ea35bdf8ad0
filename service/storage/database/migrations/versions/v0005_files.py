"""Revision 0005 adds files, whose contents are on the disk, and the batches that read them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("files_newest", "files", ["owner", "created_at", "id"])
    op.create_index("files_expiry", "files", ["expires_at"])
    op.create_table(
        "batches",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("input_file_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("claim", sa.Text),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("batches_newest", "batches", ["owner", "created_at", "id"])
    op.create_index("batches_status", "batches", ["status", "created_at"])
