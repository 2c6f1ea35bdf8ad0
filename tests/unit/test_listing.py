"""Listings leave out what is removed while a directory is read, and raise no error."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.repository.disk.listing import matching, size_of


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree whose directory `gone` is removed between its listing and its turn."""
    for name in ("stays", "gone", "stays/.hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.whl").write_bytes(b"12345")
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if not isinstance(path, int) and os.fspath(path).endswith("gone"):
            shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        yield tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*/*.whl", {"stays/one.whl"}),
        ("**/*.whl", {"stays/one.whl", "stays/.hidden/one.whl"}),
        ("absent/*", set()),
    ],
)
def test_a_directory_that_goes_away_is_left_out(tree: Path, pattern: str, found: set[str]) -> None:
    assert {path.relative_to(tree).as_posix() for path in matching(tree, pattern)} == found


def test_there_is_nothing_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert matching(tmp_path / "absent", "**") == []


def test_sizes_are_those_of_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    assert [size_of(tmp_path / name) for name in ("file", "absent", ".")] == [3, 0, 0]
