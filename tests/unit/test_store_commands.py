"""`dosirak store`: an instance's settings and loads, and the database that a store belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from models.errors import Conflict, StoreUnavailable
from models.repository.disk.layout import Layout
from models.repository.disk.records import FileRecords
from models.repository.opening import open_repository
from models.repository.repository import Repository
from models.repository.store import binding
from models.repository.store.place import StorePlace
from models.repository.store.remotes import remote_of
from models.repository.store.shared_store import SharedStore, blob
from service import cli
from service.deployments.routing import as_service_error
from service.deployments.store_follower import StoreFollower
from service.errors import Unavailable
from service.settings import Settings
from tests.reports import report
from tests.stores import fresh_store, instance
from tests.versions import publish


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"file://{tmp_path}/store"
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DOSIRAK_STORE_URL", url)
    return url


def run(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["store", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert status == 1
        return str(result.exception)
    assert result.exit_code == status, result.output
    return result.output


def test_an_old_data_directory_moves_over(url: str, tmp_path: Path) -> None:
    old = Repository(tmp_path / "data")
    manifests = [publish(old, "one"), publish(old, "two", name="other", version="stable")]
    old.put_report(manifests[0], report(manifests[0]))
    assert "dosirak store init" in run("push", status=1)
    assert "is the store" in run("init")
    assert "demo:1" in json.loads(run("status", "--json"))["not_pushed"]
    assert "2 versions pushed: demo:1, other:stable" in run("push")
    assert "0 versions pushed" in run("push"), "again, it has nothing to do"
    assert "as published" in run("verify")
    told = json.loads(run("status", "--json"))
    assert told["models"] == {"demo": 1, "other": 1}
    assert told["reports"] == 1
    assert told["not_pushed"] == []
    assert told["cached_bytes"] == sum(
        file.size for each in manifests for file in each.files if file.path.endswith(".safetensors")
    )
    fresh = instance(tmp_path, "fresh", url)
    assert [fresh.resolve(each.reference) for each in manifests] == manifests
    fresh.verify(manifests[1])
    assert fresh.report(manifests[0]) == report(manifests[0])


def test_damage_is_not_pushed(url: str, tmp_path: Path) -> None:
    run("init")
    manifest = publish(Repository(tmp_path / "data"), "one")
    path = tmp_path / "data" / "models" / "demo" / "1" / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "model.safetensors is not what was published" in run("push", status=1)
    assert manifest.reference in json.loads(run("status", "--json"))["not_pushed"]


@pytest.mark.parametrize("change", ["byte", "gone", "manifest"])
def test_verify_names_what_is_wrong(url: str, tmp_path: Path, change: str) -> None:
    run("init")
    manifest = publish(instance(tmp_path, "a", url), "one")
    remote, file = remote_of(url), manifest.files[-1]
    match change:
        case "byte":
            remote.put(blob(file.sha256), b"?" * file.size)
        case "gone":
            remote.delete(blob(file.sha256))
        case _:
            remote.put("manifests/demo/1.json", b"{}")
    shown = json.loads(run("verify", "--json", status=1))
    assert len(shown["wrong"]) == 1
    assert shown["wrong"][0].startswith("demo:1: ")


def test_a_url_that_is_no_store_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_STORE_URL", "gs://bucket")
    with pytest.raises(ValidationError, match="s3://bucket/prefix"):
        Settings()
    monkeypatch.setenv("DOSIRAK_STORE_URL", "")
    assert Settings().store_url is None


def test_an_absent_store_is_503() -> None:
    error = as_service_error(StoreUnavailable("The store does not take or give x: gone"))
    assert isinstance(error, Unavailable)
    assert error.status == 503
    assert "store does not take" in error.message


async def test_the_follower_shows_what_others_publish(url: str, tmp_path: Path) -> None:
    run("init")
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    published = publish(first, "one")
    await StoreFollower(second).refresh()
    assert second.versions("demo") == [published]


class Of(FileRecords):
    """Records of a database, by name."""

    shared = True

    def __init__(self, directory: Path, database: str) -> None:
        layout = Layout(directory)
        layout.make()
        super().__init__(layout)
        self.database_id = database  # type: ignore[assignment]


@pytest.fixture
def url_of_store_binding(tmp_path: Path) -> str:
    return fresh_store("directory", tmp_path)


def start(tmp_path: Path, url_of_store_binding: str, name: str, database: str) -> None:
    open_repository(tmp_path / name, StorePlace(url_of_store_binding), Of(tmp_path / name, database))


def test_the_first_shared_database_has_the_store(tmp_path: Path, url_of_store_binding: str) -> None:
    publish(instance(tmp_path, "alone", url_of_store_binding), "one")
    assert binding.database_of(SharedStore.open(url_of_store_binding)) is None, "an instance without one binds nothing"
    start(tmp_path, url_of_store_binding, "a", "first")
    start(tmp_path, url_of_store_binding, "b", "first")
    with pytest.raises(Conflict, match=r"of database first.*is database second.*DOSIRAK_STORE_URL.*dosirak store bind"):
        start(tmp_path, url_of_store_binding, "c", "second")
    with pytest.raises(Conflict, match=r"of database first, and no shared database is set here"):
        instance(tmp_path, "alone", url_of_store_binding)
    assert not (tmp_path / "c" / "store.json").exists(), "it was stopped before it showed anything"


def test_an_operator_binds_it_to_another(tmp_path: Path, url_of_store_binding: str) -> None:
    start(tmp_path, url_of_store_binding, "a", "first")
    store = SharedStore.open(url_of_store_binding)
    binding.bind(store, "second")
    start(tmp_path, url_of_store_binding, "c", "second")
    with pytest.raises(Conflict, match="of database second"):
        start(tmp_path, url_of_store_binding, "a", "first")
    binding.bind(store, None)
    instance(tmp_path, "alone", url_of_store_binding)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_a_damaged_binding_names_the_command(tmp_path: Path, url_of_store_binding: str, content: bytes) -> None:
    store = SharedStore.open(url_of_store_binding)
    store.remote.put(binding.BINDING, content)
    with pytest.raises(Conflict, match="damaged: run `dosirak store bind`"):
        start(tmp_path, url_of_store_binding, "a", "first")
    binding.bind(store, "first")
    start(tmp_path, url_of_store_binding, "a", "first")
