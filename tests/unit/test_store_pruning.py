"""Pruning a store takes what no version names, and nothing of a version that is published meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from models.errors import Corrupt
from models.manifest import Manifest
from models.repository import moving
from models.repository.repository import Repository
from models.repository.store.pruning import prune
from models.repository.store.remote import StoredObject
from models.repository.store.remotes import remote_of
from models.repository.store.shared_store import SharedStore, blob, unused
from tests.stores import KINDS, fresh_store, instance, s3_server
from tests.versions import publish


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path, s3: str) -> str:
    return fresh_store(request.param, tmp_path)


def test_blobs_without_a_version_go_after_the_grace(url: str, tmp_path: Path) -> None:
    first = instance(tmp_path, "a", url)
    store, remote = _store(first), remote_of(url)
    publish(first, "one")
    two = publish(first, "two")
    first.delete("demo", "1")
    (tmp_path / "uploaded").write_bytes(b"of a publisher that is not done yet")
    store.put_blob("f" * 64, tmp_path / "uploaded")
    assert prune(store, grace=0) == 0
    assert remote.head(blob("f" * 64)), "of the last day"
    assert prune(store, grace=0, upload=0) == 0
    assert len(remote.list("unused/")) == 3, "the weights and the description of 1, and the upload; no shared file"
    assert prune(store) == 0, "no hour has passed"
    assert publish(first, "one").version == "3"
    assert prune(store, grace=0) > 0
    assert remote.list("unused/") == []
    for manifest in first.versions("demo"):
        assert all(remote.head(blob(file.sha256)) for file in manifest.files)
    assert remote.head(blob("f" * 64)) is None
    assert two in first.versions("demo")


def test_a_mark_on_a_blob_of_a_version_takes_nothing(url: str, tmp_path: Path) -> None:
    """As where a version was published while a pruning made its marks."""
    first = instance(tmp_path, "a", url)
    manifest, store = publish(first, "one"), _store(first)
    for file in manifest.files:
        store.remote.create(unused(file.sha256), b"")
        assert not store.has(file.sha256, file.size), "a publisher would upload it again"
    prune(store, grace=0)
    assert all(store.has(file.sha256, file.size) for file in manifest.files)


def test_what_a_pruning_took_meanwhile_is_uploaded_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the upload and the manifest: the look right before it finds the blob gone."""
    first = instance(tmp_path, "a", url)
    store, taken = _store(first), list[str]()
    numbers = store.numbers

    def pruned(name: str) -> set[str]:
        for each in store.remote.list("blobs/"):
            taken.append(each.path)
            store.remote.delete(each.path)
        return numbers(name)

    monkeypatch.setattr(store, "numbers", pruned)
    manifest = publish(first, "one")
    assert len(taken) == 2
    assert all(store.has(file.sha256, file.size) for file in manifest.files)


def test_nothing_is_pruned_beside_a_manifest_that_cannot_be_read(url: str, tmp_path: Path) -> None:
    first = instance(tmp_path, "a", url)
    publish(first, "one")
    remote = remote_of(url)
    remote.put("manifests/demo/2.json", b"{")
    before = {each.path for each in remote.list("blobs/")}
    for _ in range(2):
        with pytest.raises(Corrupt, match="demo:2"):
            prune(_store(first), grace=0, upload=0)
    assert {each.path for each in remote.list("blobs/")} == before
    assert [sentence[:7] for sentence in first.refresh()] == ["demo:2:"], "told, and the others are shown"


def test_what_is_published_during_a_pruning_keeps_its_blobs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher takes the mark away and publishes right after the pruning has seen the mark."""
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    publish(first, "one")
    first.delete("demo", "1")
    store, published = _store(first), list[Manifest]()
    prune(store, grace=0, upload=0)
    head = store.remote.head

    def seen(path: str) -> StoredObject | None:
        found = head(path)
        if path.startswith("unused/") and not published:
            published.append(publish(second, "one"))
        return found

    monkeypatch.setattr(store.remote, "head", seen)
    prune(store, grace=0)
    assert [each.version for each in published] == ["2"]
    assert moving.verify(store) == []


def test_what_a_pruning_took_before_the_manifest_is_uploaded_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the blobs and the manifest: the look behind it finds the blobs gone."""
    first = instance(tmp_path, "a", url)
    store, published = _store(first), list[str]()
    publish_manifest = store.publish

    def pruned(manifest: Manifest) -> bool:
        for each in store.remote.list("blobs/"):
            store.remote.delete(each.path)
        published.append(manifest.reference)
        return publish_manifest(manifest)

    monkeypatch.setattr(store, "publish", pruned)
    publish(first, "one")
    assert published == ["demo:1"]
    assert moving.verify(store) == []


def _store(repository: Repository) -> SharedStore:
    assert repository.mirror is not None
    return repository.mirror.store
