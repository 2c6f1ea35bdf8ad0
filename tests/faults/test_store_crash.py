"""A publisher or a deleter that dies at any step leaves every instance with the state before it or after it.

The remote counts its calls and raises at the k-th, before it or after it, as a process that died there would leave the
store; the data directory of the dead instance is then opened again. `test_publish_crash` does the same for its files.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from models.errors import StoreUnavailable
from models.imports.upkeep import sweep
from models.repository.opening import open_repository
from models.repository.repository import Repository
from models.repository.store.place import StorePlace
from models.repository.store.pruning import prune
from models.repository.store.remote import Remote
from models.repository.store.remotes import remote_of
from tests.faults.test_publish_faults import failing
from tests.reports import report
from tests.stores import fresh_store, instance, with_remote
from tests.versions import publish


class Died(BaseException):
    """No error that anything catches."""


class Mortal:
    """A remote whose process dies at one call."""

    def __init__(self, remote: Remote, point: int, after: bool) -> None:
        self.url = remote.url
        self._remote = remote
        self._left = point
        self._after = after

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self._left -= 1
            if self._left < 0 or (self._left == 0 and not self._after):
                raise Died
            result: object = getattr(self._remote, name)(*arguments)
            if self._left == 0:
                raise Died
            return result

        return call

    @property
    def alive(self) -> bool:
        return self._left > 0


CHANGES: dict[str, Callable[[Repository], object]] = {
    "publish": lambda repository: publish(repository, "three"),
    "delete": lambda repository: repository.delete("demo", "1"),
    "report": lambda repository: repository.put_report(
        repository.get("demo", "1"), report(repository.get("demo", "1"))
    ),
}
State = tuple[tuple[str, ...], tuple[str, ...]]


def state(repository: Repository) -> State:
    """Versions, each whole with all its bytes, and which have a report."""
    versions = repository.versions("demo")
    for manifest in versions:
        repository.verify(manifest)
    measured = tuple(each.version for each in versions if repository.report(each))
    return tuple(each.version for each in versions), measured


def prepared(tmp_path: Path) -> Path:
    """A store with two versions, and the data directory of the instance that published them."""
    repository = instance(tmp_path / "prepared", "a", fresh_store("directory", tmp_path / "prepared"))
    publish(repository, "one")
    publish(repository, "two")
    return tmp_path / "prepared"


def copied(prepared: Path, place: Path) -> tuple[str, Repository]:
    shutil.copytree(prepared, place)
    url = f"file://{place}/store"
    return url, instance(place, "a", url)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CHANGES)
def test_old_or_new_everywhere(tmp_path: Path, name: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # the calls' order is what counts here
    original = prepared(tmp_path)
    _, plain = copied(original, tmp_path / "plain")
    old = state(plain)
    CHANGES[name](plain)
    new = state(plain)
    seen = list[State]()
    for point in range(1, 100):
        place = tmp_path / str(point)
        url, repository = copied(original, place)
        mortal = Mortal(remote_of(url), point, after)
        with_remote(repository, mortal)  # type: ignore[arg-type]
        with suppress(Died):
            CHANGES[name](repository)
        again, other = instance(place, "a", url), instance(place, "b", url)
        seen.append(state(again))
        assert seen[-1] in (old, new), f"{name} died at call {point}"
        assert state(other) == seen[-1], "both see the same"
        recovers(place, url, again, other)
        if mortal.alive:
            break
    assert len(seen) > (1 if name == "report" else 3)
    assert seen[-1] == new
    assert old in seen or after


@pytest.mark.nightly
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "once"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_call_that_fails_here_or_there(tmp_path: Path, name: str, number: int) -> None:
    """The same for failing calls of the system, of the instance's disk and of the store's."""
    original, outcomes = prepared(tmp_path), set[str]()
    _, plain = copied(original, tmp_path / "plain")
    old = state(plain)
    CHANGES[name](plain)
    new = state(plain)
    for point in range(1, 1000):
        place = tmp_path / str(point)
        url, repository = copied(original, place)
        with failing(point, number, once=number == errno.EIO) as failed:
            try:
                CHANGES[name](repository)
                outcomes.add("made")
            except (OSError, StoreUnavailable):
                outcomes.add("refused")
        repository.refresh()
        seen = state(repository)
        assert seen in (old, new) and state(instance(place, "b", url)) == seen, f"{failed[:1]} failed at call {point}"
        recovers(place, url, instance(place, "a", url), instance(place, "b", url))
        if not failed:
            break
    assert outcomes == {"made", "refused"}


def recovers(place: Path, url: str, again: Repository, other: Repository) -> None:
    """Both go on, and pruning takes no blob of a version."""
    sweep(again, older_than=0)
    assert list((place / "a" / "tmp").iterdir()) == []
    assert again.mirror is not None
    prune(again.mirror.store, grace=0, upload=0)
    prune(again.mirror.store, grace=0, upload=0)
    newest = publish(other, "after")
    again.refresh()
    assert again.get("demo", newest.version) == newest
    fresh = open_repository(place / "c", StorePlace(url))
    for manifest in fresh.versions("demo"):
        fresh.verify(manifest)
