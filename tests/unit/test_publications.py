"""The order of versions: what a list of them reads, and what it does without its file."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from models.repository.disk.journal import timestamp
from models.repository.repository import Repository
from tests.versions import publish


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data", lock_timeout=5)


def read_manifests(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The manifests that are read from now on."""
    read, plain = list[Path](), Path.read_bytes

    def watched(path: Path) -> bytes:
        if path.name == "manifest.json":
            read.append(path)
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", watched)
    return read


def test_a_page_reads_the_manifests_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that has seen none of the 300 versions."""
    made = many_versions(Repository(tmp_path), 300)
    read = read_manifests(monkeypatch)
    fresh = Repository(tmp_path)
    first = list(islice(fresh.newest_first("demo"), 50))
    assert [each.version for each in first] == made[:-51:-1] and len(read) == 50
    last = first[-1]
    second = list(islice(fresh.newest_first("demo", (last.created_at, last.version)), 50))
    assert [each.version for each in second] == made[-51:-101:-1] and len(read) == 100
    assert fresh.resolve("demo").version == made[-1] and fresh.models() == ["demo"] and len(read) == 100
    fresh.delete("demo", made[-1])
    publish(fresh, "one more")
    assert len(read) == 100, "neither what is published nor what is deleted looks at the others"


def many_versions(repository: Repository, count: int) -> list[str]:
    """Publishes versions whose numbers are not in the order of their names; returns them, oldest first."""
    first = publish(repository, "weights")
    source, made = repository.path(first), [first.version]
    moment = datetime.fromisoformat(first.created_at)
    for number in range(2, count + 1):
        version = f"v{number * 7 % 997}" if number % 3 else str(number)
        created_at = timestamp(moment + timedelta(seconds=number))
        directory = source.parent / version
        directory.mkdir()
        for name in ("config.json", "model.safetensors", "model.yaml"):
            os.link(source / name, directory / name)
        manifest = replace(first, version=version, created_at=created_at)
        (directory / "manifest.json").write_text(manifest.to_json())
        made.append(version)
    assert [each.version for each in repository.versions("demo")] == made
    return made


@pytest.mark.parametrize("damage", ["gone", "torn", "garbage", "read-only", "a directory"])
def test_the_order_of_versions_needs_no_file_of_its_own(repository: Repository, tmp_path: Path, damage: str) -> None:
    """As after a crash, in a repository of an earlier release, or where nothing can be written."""
    made = [publish(repository, str(number), version=f"v{number * 7 % 10}").version for number in range(8)]
    lines = tmp_path / "data" / "published" / "demo"
    whole = lines.read_bytes()
    assert whole.count(b"\n") == 8
    if damage == "torn":
        lines.write_bytes(whole[:-9])
    elif damage == "garbage":
        lines.write_bytes(b"\x00\xff\n" + whole.replace(b"Z v", b"Z  v") + b"2026 v1\n")
    else:
        lines.unlink()
    if damage == "read-only":
        lines.parent.rmdir()
        lines.parent.write_text("in the way")
    elif damage == "a directory":
        lines.mkdir()
    fresh = Repository(tmp_path / "data")
    assert [each.version for each in fresh.versions("demo")] == made
    assert publish(fresh, "next").version == "1" and fresh.resolve("demo").version == "1"
    assert [each.version for each in Repository(tmp_path / "data").versions("demo")] == [*made, "1"]
    if lines.is_file():
        assert lines.read_bytes().endswith(b" 1\n")


def test_a_damaged_version_is_on_no_page(repository: Repository) -> None:
    for number in range(3):
        publish(repository, str(number))
    path = repository.path(repository.get("demo", "2")) / "manifest.json"
    path.chmod(0o644)
    path.write_text("{")
    assert [each.version for each in repository.newest_first("demo")] == ["3", "1"]
