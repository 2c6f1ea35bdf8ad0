"""Revision 0011 has the audit: its rows, its head, and triggers that keep the rows as they are. Rows that a later row
`audit.cut` names may go."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
TEXTS: Final = ("action", "outcome", "subject", "owner", "name", "peer", "instance", "request_id", "detail", "previous")
REFUSAL: Final = "rows of the audit are not changed: `dosirak audit cut` removes old ones"
IS_CUT: Final = """EXISTS (SELECT 1 FROM audit AS cut WHERE cut.action = 'audit.cut' AND cut.number > OLD.number
AND CAST(cut.subject AS BIGINT) >= OLD.number)"""
SQLITE: Final = (
    f"CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END",
    f"CREATE TRIGGER audit_kept BEFORE DELETE ON audit WHEN NOT {IS_CUT} BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END",
)
POSTGRESQL: Final = (
    f"""CREATE FUNCTION audit_refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF TG_OP = 'DELETE' THEN IF {IS_CUT} THEN RETURN OLD; END IF; END IF;
RAISE EXCEPTION '{REFUSAL}'; END $$""",
    "CREATE TRIGGER audit_kept BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuses()",
    "CREATE TRIGGER audit_not_emptied BEFORE TRUNCATE ON audit EXECUTE FUNCTION audit_refuses()",
)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in (*TEXTS, "hash")),
    )
    op.create_index("audit_action", "audit", ["action", "number"])
    op.create_index("audit_time", "audit", ["at"])
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
    )
    op.bulk_insert(head, [{"id": 1, "number": 0, "hash": ""}])
    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)
