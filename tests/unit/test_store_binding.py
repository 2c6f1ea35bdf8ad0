"""A store belongs to one shared database; a second one, or none, stops the start with both names and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import Conflict
from models.repository.disk.layout import Layout
from models.repository.disk.records import FileRecords
from models.repository.opening import open_repository
from models.repository.store import binding
from models.repository.store.place import StorePlace
from models.repository.store.shared_store import SharedStore
from tests.stores import fresh_store, instance
from tests.versions import publish


class Of(FileRecords):
    """Records of a database, by name."""

    shared = True

    def __init__(self, directory: Path, database: str) -> None:
        layout = Layout(directory)
        layout.make()
        super().__init__(layout)
        self.database_id = database  # type: ignore[assignment]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return fresh_store("directory", tmp_path)


def start(tmp_path: Path, url: str, name: str, database: str) -> None:
    open_repository(tmp_path / name, StorePlace(url), Of(tmp_path / name, database))


def test_the_first_shared_database_has_the_store(tmp_path: Path, url: str) -> None:
    publish(instance(tmp_path, "alone", url), "one")
    assert binding.database_of(SharedStore.open(url)) is None, "an instance without one binds nothing"
    start(tmp_path, url, "a", "first")
    start(tmp_path, url, "b", "first")
    with pytest.raises(Conflict, match=r"of database first.*is database second.*DOSIRAK_STORE_URL.*dosirak store bind"):
        start(tmp_path, url, "c", "second")
    with pytest.raises(Conflict, match=r"of database first, and no shared database is set here"):
        instance(tmp_path, "alone", url)
    assert not (tmp_path / "c" / "store.json").exists(), "it was stopped before it showed anything"


def test_an_operator_binds_it_to_another(tmp_path: Path, url: str) -> None:
    start(tmp_path, url, "a", "first")
    store = SharedStore.open(url)
    binding.bind(store, "second")
    start(tmp_path, url, "c", "second")
    with pytest.raises(Conflict, match="of database second"):
        start(tmp_path, url, "a", "first")
    binding.bind(store, None)
    instance(tmp_path, "alone", url)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_a_damaged_binding_names_the_command(tmp_path: Path, url: str, content: bytes) -> None:
    store = SharedStore.open(url)
    store.remote.put(binding.BINDING, content)
    with pytest.raises(Conflict, match="damaged: run `dosirak store bind`"):
        start(tmp_path, url, "a", "first")
    binding.bind(store, "first")
    start(tmp_path, url, "a", "first")
