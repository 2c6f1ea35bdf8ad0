"""Opening gives the repository of a data directory, with the store that its versions are shared through, if any."""

from __future__ import annotations

from pathlib import Path

from models.errors import Conflict
from models.repository.disk.records import Records
from models.repository.repository import Repository
from models.repository.store import binding
from models.repository.store.mirror import MARK
from models.repository.store.place import ALONE, StorePlace
from models.repository.store.shared_store import SharedStore


def open_repository(data_dir: Path, place: StorePlace = ALONE, records: Records | None = None) -> Repository:
    """Returns the repository, which shows what the store holds now. `records` are those that instances share. Raises
    StoreUnavailable, InvalidSource for a URL that is none, and Conflict, with what to do, where the two do not belong
    together."""
    repository = open_unpushed(data_dir, place, records)
    if repository.mirror is not None:
        repository.mirror.require_pushed()
        repository.refresh()
    return repository


def open_unpushed(data_dir: Path, place: StorePlace, records: Records | None = None) -> Repository:
    """Does the same for a data directory whose versions may not be in the store yet, and shows nothing new of it."""
    if place.url is not None:
        store = SharedStore.open(place.url)
        binding.require(store, records.database_id if records else None)
        return Repository(data_dir, records=records, store=store, cache_bytes=place.cache_bytes)
    if (data_dir / MARK).exists():
        raise Conflict("The data directory shows a store's versions: set its DOSIRAK_STORE_URL again")
    return Repository(data_dir, records=records)
