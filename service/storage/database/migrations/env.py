"""This script is Alembic's entry: it runs the migrations in the transaction that `migrating` has begun, or for commands
such as `alembic check`."""

from __future__ import annotations

from alembic import context

from service.storage.database import audit_tables, record_tables, search_index, tables

connection = context.config.attributes["connection"]
indexes = () if connection.dialect.name == "sqlite" else (search_index.postgresql,)


def ours(name: str | None, kind: str, parents: object) -> bool:
    """Returns False for SQLite's own tables behind the index: they are no part of the compared schema."""
    in_index = name is not None and name.startswith(search_index.INDEXES)
    return not (kind == "table" and connection.dialect.name == "sqlite" and in_index)


context.configure(
    connection=connection,
    target_metadata=[tables.metadata, record_tables.metadata, audit_tables.metadata, *indexes],
    include_name=ours,
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
