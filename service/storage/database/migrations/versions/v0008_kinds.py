"""Revision 0008 tells the kinds of stored answers apart: chat completions stand beside the responses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for column, before in (("kind", "response"), ("model", ""), ("metadata", "{}")):
        op.add_column("answers", sa.Column(column, sa.Text, nullable=False, server_default=before))
    op.drop_index("answers_owner", "answers")
    op.create_index("answers_owner", "answers", ["owner", "kind", "number"])
