"""Revision 0013 tells of a response kept for a key which stored answer it shows: both are deleted together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("idempotency", sa.Column("answer_id", sa.Text))
    op.create_index("idempotency_answer", "idempotency", ["answer_id"])
