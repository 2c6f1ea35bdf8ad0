"""Instances with data directories of their own share versions through one store: a directory, and an S3 bucket."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.errors import Conflict, Corrupt, InvalidSource, NotFound, StoreUnavailable
from models.imports.upkeep import collect
from models.repository.opening import open_repository
from models.repository.repository import Repository
from models.repository.store import fetching
from models.repository.store.pruning import prune
from models.repository.store.remote import IDENTITY, Remote
from models.repository.store.remotes import remote_of
from models.repository.store.shared_store import SharedStore, blob
from tests.reports import report
from tests.stores import KINDS, fresh_store, instance, s3_server, weights, with_remote
from tests.versions import publish


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path, s3: str) -> str:
    return fresh_store(request.param, tmp_path)


class Away:
    """A remote that does not answer."""

    url = "file:///away"

    def __getattr__(self, name: str) -> object:
        raise StoreUnavailable("The store does not take or give anything")


def test_what_one_publishes_the_other_serves(url: str, tmp_path: Path) -> None:
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    published = publish(first, "one")
    assert second.models() == []
    assert second.refresh() == []
    assert second.versions("demo") == [published]
    assert (tmp_path / "b" / "models" / "demo" / "latest").read_text() == "1"
    assert not weights(second).exists(), "weights come when they are used"
    assert (second.path(published) / "config.json").read_text() == "{}"
    with second.lease(published):
        second.fetch(published)
        second.verify(published)
    assert weights(second).read_bytes() == weights(first).read_bytes()
    assert not weights(second).stat().st_mode & 0o222


def test_reports_and_deletions_reach_the_other(url: str, tmp_path: Path) -> None:
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest = publish(first, "one")
    second.refresh()
    second.put_report(manifest, report(manifest))
    first.refresh()
    assert first.report(manifest) == second.report(manifest) == report(manifest)
    first.delete("demo", "1", "old")
    with second.lease(manifest):
        second.refresh()
        assert second.versions("demo") == [manifest], "in use here"
    second.refresh()
    assert second.versions("demo") == []
    assert second.report(manifest) is None
    assert publish(second, "two").version == "2", "a deleted number is never used again"
    with pytest.raises(Conflict, match="once existed"):
        publish(first, "three", version="1")


def test_no_number_is_published_twice(url: str, tmp_path: Path) -> None:
    instances = [instance(tmp_path, name, url) for name in "abc"]
    threads = [
        threading.Thread(target=lambda each=each, k=k: [publish(each, f"{k} {n}") for n in range(4)])
        for k, each in enumerate(instances)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in instances:
        each.refresh()
    listed = [each.versions("demo") for each in instances]
    assert {m.version for m in listed[0]} == {str(number) for number in range(1, 13)}
    assert sorted(listed[0], key=str) == sorted(listed[1], key=str) == sorted(listed[2], key=str)


def test_creation_is_conditional(url: str) -> None:
    """The rule that everything rests on, at the remote itself and under a race."""
    remote = remote_of(url)
    won = list[int]()
    barrier = threading.Barrier(6)

    def create(number: int) -> None:
        barrier.wait()
        if remote.create("race/one", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert remote.get("race/one") == str(won[0]).encode()


def test_a_place_that_replaces_what_it_must_not_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = remote_of(url)
    put = type(remote).put
    monkeypatch.setattr(type(remote), "create", lambda self, path, data: put(self, path, data) or True)
    remote.delete(IDENTITY)
    with pytest.raises(Conflict, match="keeps conditional writes"):
        SharedStore.init(url)


def test_remotes_agree(url: str, tmp_path: Path) -> None:
    remote = remote_of(url)
    assert remote.get("a/none") is None
    assert remote.head("a/none") is None
    with pytest.raises(NotFound):
        remote.read("a/none", 0, 3)
    remote.delete("a/none")
    (tmp_path / "file").write_bytes(b"0123456789")
    remote.upload("a/file", tmp_path / "file")
    assert bytes(remote.read("a/file", 3, 6)) == b"345"
    assert bytes(remote.read("a/file", 8, 20)) == b"89"
    remote.put("a/other", b"x")
    assert [(each.path, each.size) for each in remote.list("a/")] == [("a/file", 10), ("a/other", 1)]
    tags = {each.tag for each in remote.list("a/")}
    remote.put("a/other", b"y")
    assert {each.tag for each in remote.list("a/")} != tags
    assert remote.list("none/") == []


@pytest.mark.parametrize("change", ["byte", "short", "gone"])
def test_a_changed_blob_is_never_loaded(url: str, tmp_path: Path, change: str) -> None:
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest = publish(first, "one")
    second.refresh()
    file = next(each for each in manifest.files if each.path == "model.safetensors")
    remote, good = remote_of(url), weights(first).read_bytes()
    if change == "gone":
        remote.delete(blob(file.sha256))
    else:
        remote.put(blob(file.sha256), good[:-1] + (b"?" if change == "byte" else b""))
    with pytest.raises((Corrupt, NotFound), match=r"demo:1: model\.safetensors: "):
        second.fetch(manifest)
    assert not weights(second).exists()
    assert list((tmp_path / "b" / "tmp").iterdir()) == []
    remote.put(blob(file.sha256), good)
    second.fetch(manifest)
    second.verify(manifest)


def test_the_next_try_is_fetched(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong on the way once is right the next time; parts arrive in order."""
    monkeypatch.setattr(fetching, "PART_BYTES", 7)
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest = publish(first, "a text of more than one part" * 9)
    second.refresh()
    remote, reads = remote_of(url), list[int]()
    read = remote.read

    def torn(path: str, start: int, end: int) -> memoryview:
        reads.append(start)
        part = read(path, start, end)
        return memoryview(bytes(len(part))) if start == 14 and reads.count(14) == 1 else part

    monkeypatch.setattr(remote, "read", torn)
    monkeypatch.setattr(remote, "file", lambda path: None)
    with_remote(second, remote)
    second.fetch(manifest)
    assert weights(second).read_bytes() == weights(first).read_bytes()
    assert reads.count(0) == 2


@pytest.mark.parametrize("problem", ["refused", "half", "torn once"])
def test_where_the_kernel_does_not_copy_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    monkeypatch.setattr(fetching, "PART_BYTES", 7)
    url, calls, copy = fresh_store("directory", tmp_path), list[int](), os.copy_file_range
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest = publish(first, "a text of more than one part" * 9)
    second.refresh()

    def bad(source: int, target: int, count: int, at: int, to: int) -> int:
        calls.append(at)
        if problem == "refused":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        if problem == "half":
            return copy(source, target, min(count, 3), at, to) if at % 7 == 0 else 0
        return os.pwrite(target, bytes(count), to) if calls == [0] else copy(source, target, count, at, to)

    monkeypatch.setattr(os, "copy_file_range", bad)
    second.fetch(manifest)
    second.verify(manifest)
    assert calls


def _cached(repository: Repository) -> set[str]:
    return {m.version for m in repository.versions("demo") if weights(repository, m.reference).exists()}


def test_the_least_recently_used_goes_first_and_never_one_in_use(url: str, tmp_path: Path) -> None:
    first = instance(tmp_path, "a", url)
    versions = [publish(first, character * 1000) for character in "1234"]
    each = weights(first).stat().st_size
    second = instance(tmp_path, "b", url, cache_bytes=2 * each + 1)
    with second.lease(versions[0]):
        second.fetch(versions[0])
        second.fetch(versions[1])
        assert _cached(second) == {"1", "2"}
        second.fetch(versions[2])
        assert _cached(second) == {"1", "3"}, "1 is older, but has a lease"
        with second.lease(versions[2]), pytest.raises(Conflict, match=r"no room.*DOSIRAK_STORE_CACHE_BYTES"):
            second.fetch(versions[3])
        assert _cached(second) == {"1", "3"}
    second.fetch(versions[0])  # used again, so 3 goes
    second.fetch(versions[3])
    assert _cached(second) == {"1", "4"}
    sizes = [path.stat().st_size for path in (tmp_path / "b" / "blobs").iterdir()]
    assert sizes.count(each) == 2, "the blob goes with the weights"


def test_what_the_store_lost_is_not_evicted(url: str, tmp_path: Path) -> None:
    first = instance(tmp_path, "a", url)
    one, two = publish(first, "1" * 1000), publish(first, "2" * 1000)
    second = instance(tmp_path, "b", url, cache_bytes=weights(first).stat().st_size)
    second.fetch(one)
    file = next(each for each in one.files if each.path == "model.safetensors")
    remote_of(url).delete(blob(file.sha256))
    with pytest.raises(Conflict, match="no room"):
        second.fetch(two)
    assert _cached(second) == {"1"}


def test_reading_goes_on_while_the_store_is_away(url: str, tmp_path: Path) -> None:
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest, late = publish(first, "one"), publish(first, "two")
    second.refresh()
    second.fetch(manifest)
    with_remote(second, Away())  # type: ignore[arg-type]
    assert second.versions("demo") == [manifest, late]
    with second.lease(manifest):
        second.fetch(manifest)
        second.verify(manifest)
    for change in (
        second.refresh,
        lambda: publish(second, "three"),
        lambda: second.delete("demo", "1"),
        lambda: second.put_report(manifest, report(manifest)),
        lambda: second.fetch(late),
    ):
        with pytest.raises(StoreUnavailable):
            change()
    assert second.versions("demo") == [manifest, late]
    assert second.report(manifest) is None


def test_a_deletion_wins_over_a_manifest(url: str, tmp_path: Path) -> None:
    """A deleter that died behind its first write has deleted the version; pruning clears what is left."""
    first = instance(tmp_path, "a", url)
    manifest, store = publish(first, "one"), _store(first)
    store.remote.put("deleted/demo/1.json", b"{}")
    assert store.manifest("demo", "1") is None
    assert store.listing().versions == set()
    assert not store.publish(manifest)
    prune(store)
    assert store.remote.list("manifests/") == []


def test_places_that_are_no_store_stop_the_start(url: str, tmp_path: Path) -> None:
    other = f"{url}-other"
    with pytest.raises(Conflict, match="dosirak store init"):
        instance(tmp_path, "a", other)
    repository = instance(tmp_path, "a", url)
    SharedStore.init(other)
    with pytest.raises(Conflict, match="another store"):
        instance(tmp_path, "a", other)
    with pytest.raises(Conflict, match="set its DOSIRAK_STORE_URL again"):
        open_repository(repository.layout.data_dir)


def test_versions_of_before_are_pushed_not_hidden(url: str, tmp_path: Path) -> None:
    publish(Repository(tmp_path / "a"), "one")
    with pytest.raises(Conflict, match=r"demo:1 .*dosirak store push"):
        instance(tmp_path, "a", url)
    publish(instance(tmp_path, "b", url), "another one")
    publish(Repository(tmp_path / "c"), "one")
    with pytest.raises(Conflict, match="demo:1 of the data directory is not the store's"):
        instance(tmp_path, "c", url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://x/y", "must be file"),
        ("file://host/x", "must be file"),
        ("s3://", "must be file"),
        ("file:///", "must be file"),
        ("s3://key:secret@bucket/x", "credentials"),
        ("s3://bucket/x?region=y", "query"),
    ],
)
def test_urls_that_are_no_store(url: str, why: str) -> None:
    with pytest.raises(InvalidSource, match=why):
        remote_of(url)


def test_a_directory_that_is_not_mounted_takes_nothing(tmp_path: Path) -> None:
    remote: Remote = remote_of(fresh_store("directory", tmp_path))
    (tmp_path / "store" / IDENTITY).rename(tmp_path / "aside")
    with pytest.raises(StoreUnavailable, match="mount it again"):
        remote.put("blobs/x", b"")


def test_a_collection_prunes_the_store_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = instance(tmp_path, "a", fresh_store("directory", tmp_path))
    called = list[SharedStore]()

    def counted(store: SharedStore) -> int:
        called.append(store)
        return 5

    monkeypatch.setattr("models.imports.upkeep.pruning.prune", counted)
    assert collect(repository).bytes == 5
    assert called == [_store(repository)]


def _store(repository: Repository) -> SharedStore:
    assert repository.mirror is not None
    return repository.mirror.store
