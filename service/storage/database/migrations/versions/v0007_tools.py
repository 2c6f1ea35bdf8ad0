"""Revision 0007 adds tool calls, the calls of results, and reasoning to messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    for column in ("tool_calls", "tool_call_id", "reasoning"):
        op.add_column("messages", sa.Column(column, sa.Text))
