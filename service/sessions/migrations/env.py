"""Alembic's entry: runs the scripts in the transaction that `migrating` has begun, or by `alembic check`'s like."""

from __future__ import annotations

from alembic import context

from service.sessions import search, tables

connection = context.config.attributes["connection"]
indexes = () if connection.dialect.name == "sqlite" else (search.postgresql,)


def ours(name: str | None, kind: str, parents: object) -> bool:
    """SQLite's own tables behind the index are no part of the schema that is compared."""
    in_index = name is not None and name.startswith(search.INDEXES)
    return not (kind == "table" and connection.dialect.name == "sqlite" and in_index)


context.configure(
    connection=connection,
    target_metadata=[tables.metadata, *indexes],
    include_name=ours,
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
