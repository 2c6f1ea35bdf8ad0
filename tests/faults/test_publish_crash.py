"""SIGKILL at every system call of a change leaves the repository in the state before it or after it.

A child is forked for each point: it makes the change with every call that touches the disk counted, and kills itself at
the k-th; a write is torn, its first half reaching the file. The parent then looks with a fresh Repository.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from models.imports.upkeep import collect, sweep
from models.repository.repository import Repository
from tests.reports import report
from tests.versions import publish

CALLS = ("open", "write", "fsync", "rename", "replace", "mkdir", "chmod", "truncate", "unlink", "rmdir", "link")
Change = Callable[[Repository], object]
State = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


def state(data_dir: Path) -> State:
    """Versions and aliases as a fresh process sees them; every version is whole and no alias dangles."""
    repository = Repository(data_dir)
    versions = repository.versions("demo")
    for manifest in versions:
        repository.verify(manifest)
    aliases = repository.aliases("demo")
    names = tuple(manifest.version for manifest in versions)
    assert set(aliases.values()) <= set(names)
    return names, tuple(sorted(aliases.items()))


def half_built(data_dir: Path) -> list[Path]:
    """Version directories that BentoML's listing would fail on."""
    directories = [path for path in data_dir.glob("models/*/*") if path.is_dir()]
    return [
        path for path in directories if not (path / "model.yaml").is_file() or not (path / "manifest.json").is_file()
    ]


def killed_at(point: int, data_dir: Path, change: Change) -> bool:
    """Make `change` in a child that dies at its `point`-th call; False when it ended before that."""
    child = os.fork()
    if child == 0:
        try:
            arm(point)
            change(Repository(data_dir))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def arm(point: int) -> None:
    """Replace the calls in `os` by ones that count, in this process."""
    count = 0

    def armed(name: str) -> None:
        original = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == point:
                if name == "write":
                    descriptor, data = arguments
                    original(descriptor, bytes(data)[: len(bytes(data)) // 2])  # type: ignore[call-overload]
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        setattr(os, name, call)

    for name in CALLS:
        armed(name)


def prepare(data_dir: Path) -> None:
    repository = Repository(data_dir)
    publish(repository, "one")
    publish(repository, "two")
    repository.promote("demo", "production", "1", "first")
    repository.promote("demo", "production", "2", "second")


CHANGES: dict[str, Change] = {
    "publish": lambda repository: publish(repository, "three"),
    "promote": lambda repository: repository.promote("demo", "canary", "1", "try"),
    "rollback": lambda repository: repository.rollback("demo", "production", "bad"),
    "remove": lambda repository: repository.remove_alias("demo", "production", "stop"),
    "delete": lambda repository: repository.delete("demo", "1"),
    "gc": lambda repository: collect(repository, keep=0),
    "report": lambda repository: repository.put_report(
        repository.get("demo", "1"), report(repository.get("demo", "1"))
    ),
}
USUAL = {"publish", "promote", "gc"}


@pytest.mark.parametrize(
    "name", [each if each in USUAL else pytest.param(each, marks=pytest.mark.nightly) for each in CHANGES]
)
def test_old_or_new(tmp_path: Path, name: str) -> None:
    change = CHANGES[name]
    prepare(tmp_path / "plain")
    old = state(tmp_path / "plain")
    change(Repository(tmp_path / "plain"))
    new = state(tmp_path / "plain")
    seen: list[State] = []
    for point in range(1, 1000):
        data_dir = tmp_path / str(point)
        prepare(data_dir)
        killed = killed_at(point, data_dir, change)
        seen.append(state(data_dir))
        assert seen[-1] in (old, new), f"{name} killed at call {point}"
        assert half_built(data_dir) == []
        assert (data_dir / "models" / "demo" / "latest").read_text() in ("2", "3")
        recovers(data_dir)
        if not killed:
            break
    assert len(seen) > 5
    assert (seen[0], seen[-1]) == (old, new)


def recovers(data_dir: Path) -> None:
    """After a crash everything still works, and a sweep leaves no trace of it."""
    repository = Repository(data_dir)
    sweep(repository, older_than=0)
    assert list((data_dir / "tmp").iterdir()) == []
    newest = repository.versions("demo")[-1].version
    assert (data_dir / "models" / "demo" / "latest").read_text() == newest
    assert publish(repository, "after").version == str(int(newest) + 1)
    repository.promote("demo", "production", newest, "after the crash")
    assert repository.resolve("demo").version == newest


@pytest.mark.nightly
def test_first_publish_ever(tmp_path: Path) -> None:
    """An empty repository has no model or a whole one, also when it dies while it makes its directories."""
    for point in range(1, 1000):
        data_dir = tmp_path / str(point)
        killed = killed_at(point, data_dir, lambda repository: publish(repository, "one"))
        assert state(data_dir) in ((("1",), ()), ((), ()))
        if not killed:
            break
    assert state(data_dir) == (("1",), ())
