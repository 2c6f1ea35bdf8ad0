"""A binding says which database the instances of a store share. Two databases would know nothing of each other's
leases, so an instance of one could delete a version that an instance of the other serves.

    database.json    the id of the database; absent while no instance with a shared database has opened the store

The object is created by the first such instance, never replaced but by an operator's command.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from models.errors import Conflict
from models.repository.disk.journal import timestamp
from models.repository.store.shared_store import SharedStore

BINDING: Final = "database.json"


def database_of(store: SharedStore) -> str | None:
    """Returns the id of the store's database, or None. Raises Conflict for an object that is not ours."""
    content = store.remote.get(BINDING)
    if content is None:
        return None
    try:
        return str(json.loads(content)["id"])
    except (ValueError, TypeError, KeyError):
        raise Conflict(f"{BINDING} of the store is damaged: run `dosirak store bind`") from None


def require(store: SharedStore, database: str | None) -> None:
    """Binds a store to its first shared database. `database` is None where the instance has one of its own. Raises
    Conflict, with both ids and the way out, where the store is another database's."""
    if database is not None and database_of(store) is None:
        store.remote.create(BINDING, _content(database))
    bound = database_of(store)
    if bound == database:
        return
    setting = "no shared database is set here" if database is None else f"DOSIRAK_DATABASE_URL is database {database}"
    raise Conflict(
        f"{store.remote.url} is the store of database {bound}, and {setting}: set DOSIRAK_DATABASE_URL to that "
        "database, or DOSIRAK_STORE_URL to another store; if that database is gone for good, end every instance of it "
        "and run `dosirak store bind`"
    )


def bind(store: SharedStore, database: str | None) -> None:
    """Makes the store that of another database, or of none."""
    if database is None:
        store.remote.delete(BINDING)
    else:
        store.remote.put(BINDING, _content(database))


def _content(database: str) -> bytes:
    return json.dumps({"id": database, "since": timestamp(datetime.now(UTC))}, indent=2).encode() + b"\n"
