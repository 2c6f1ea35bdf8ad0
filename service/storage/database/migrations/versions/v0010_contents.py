"""Revision 0010 adds the sha256 of a file's content, where the content lies in the store of all instances."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("files", sa.Column("sha256", sa.Text))
