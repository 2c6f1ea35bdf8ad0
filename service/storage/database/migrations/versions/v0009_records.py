"""Revision 0009 has the records that instances share: aliases, rollouts, wanted deployments, and who is there."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    state = op.create_table(
        "record_state",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("database_id", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(state, [{"id": 1, "database_id": uuid.uuid4().hex, "revision": 0}])
    op.create_table(
        "records",
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("content", sa.Text),
    )
    op.create_index("records_name", "records", ["kind", "name"])
    op.create_table(
        "instances",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("software", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("instance", sa.Text, sa.ForeignKey("instances.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True),
    )
    op.create_index("leases_version", "leases", ["name", "version"])
