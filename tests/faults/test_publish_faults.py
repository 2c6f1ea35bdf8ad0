"""A change of the repository whose system calls fail is refused and leaves the state before it, without a file of its
own; the same repository then makes the change. Each call fails once, or the disk is full from that call on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from models.imports.upkeep import sweep
from models.repository.disk.records import FileRecords
from models.repository.repository import Repository
from service.evaluation.jobs.job import Job, JobFiles
from tests.faults.test_publish_crash import CALLS, CHANGES, Change, prepare, state
from tests.versions import publish

Tree = dict[str, bytes]
KEPT_APART: Final = ("locks/", "published/", "blobs/", "tmp/")
"""Locks; lines that are made again; shared files, which the next collection removes; what a sweep removes."""


def a_child(repository: Repository) -> object:
    """A version that inherits a record from its parent."""
    return publish(repository, "child", parent=repository.get("demo", "2"))


def a_key(repository: Repository) -> object:
    records = FileRecords(repository.layout)
    with records.locked("keys", 1):
        records.put_document("keys", "server/keys", b"[]")
    return None


MORE: Final[dict[str, Change]] = {
    "child": a_child,
    "key": a_key,
    "job": lambda repository: JobFiles(repository.layout.data_dir).put(Job("job-a", "import", {}, "queued", "now")),
}
ALL: Final = {name: change for name, change in (CHANGES | MORE).items() if name != "gc"}
"""A collection is many changes, each whole."""
AT_ITS_END: Final = {"key": "keys/server/keys.json", "job": "jobs/job-a.json", "report": "reports/demo/1.json"}
"""Files that are replaced: where only the directory's way to the disk fails, the new one is there."""


def tree(data_dir: Path) -> Tree:
    """The files of a data directory by name, but for those that need not be as before."""
    files = {str(path.relative_to(data_dir)): path for path in data_dir.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(KEPT_APART)}


@contextmanager
def failing(point: int, number: int, *, once: bool) -> Iterator[list[str]]:
    """Makes the `point`-th call fail, and all after it unless `once`. A full disk fails calls that take room, a write
    after its first half. Yields the names of the calls that failed."""
    count, failed = 0, list[str]()

    def armed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if number == errno.ENOSPC and not _takes_room(name, arguments):
                return original(*arguments, **options)
            count += 1
            if count != point and (once or count < point):
                return original(*arguments, **options)
            failed.append(name)
            if name == "write":
                original(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            raise OSError(number, os.strerror(number))

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, armed(name, getattr(os, name)))
        yield failed


def _allowed(name: str, call: str) -> set[str]:
    """What a refused change may leave: an entry in the history is older than the deletion that it tells of."""
    if name == "delete" and call == "rename":
        return {"journal/demo.jsonl"}
    return {AT_ITS_END[name]} if name in AT_ITS_END and call in ("open", "fsync") else set()


def _takes_room(name: str, arguments: tuple[Any, ...]) -> bool:
    return name in ("write", "mkdir", "link") or (name == "open" and bool(arguments[1] & os.O_CREAT))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "once"])
@pytest.mark.parametrize("name", ALL)
def test_refused_or_made(tmp_path: Path, name: str, number: int) -> None:
    change, refusals = ALL[name], 0
    for point in range(1, 1000):
        data_dir = tmp_path / str(point)
        prepare(data_dir)
        repository = Repository(data_dir)
        repository.records.put_document("parsers", "demo/2", b"{}")
        old, before = state(data_dir), tree(data_dir)
        with failing(point, number, once=number == errno.EIO) as failed:
            try:
                change(repository)
                refused = False
            except OSError:
                refused = True
        at = f"{name}: {failed[:1]} failed at call {point}"
        if refused:
            refusals += 1
            after = tree(data_dir)
            assert state(data_dir) == old, at
            changed = {each for each in after.keys() | before.keys() if after.get(each) != before.get(each)}
            assert changed <= _allowed(name, failed[0]), at
        sweep(repository, older_than=0)
        assert list((data_dir / "tmp").iterdir()) == [], at
        if refused:
            change(repository)
        assert (data_dir / "models" / "demo" / "latest").read_text() == state(data_dir)[0][-1], at
        if not failed:
            break
    assert refusals > 1
