"""A value made of a file is made once, and again as soon as the file is another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.repository.disk import durable
from models.repository.disk.remembered import Remembered


@pytest.fixture
def made() -> list[bytes]:
    return []


@pytest.fixture
def remembered(made: list[bytes]) -> Remembered[int]:
    def make(content: bytes) -> int:
        made.append(content)
        return int(content.split()[-1])

    return Remembered(make)


def test_it_is_made_once(tmp_path: Path, made: list[bytes], remembered: Remembered[int]) -> None:
    path = tmp_path / "number"
    path.write_bytes(b"1\n")
    assert [remembered.of(path) for _ in range(3)] == [1, 1, 1] and made == [b"1\n"]


def test_every_kind_of_change_is_seen(tmp_path: Path, remembered: Remembered[int]) -> None:
    path = tmp_path / "number"
    for number in (1, 2, 3):
        durable.append_line(path, b"%d" % number)
        os.utime(path, ns=(0, 0))
        assert remembered.of(path) == number, "another size"
    for number in (4, 5, 6):
        durable.replace(path, b"%d\n" % number)
        os.utime(path, ns=(0, 0))
        assert remembered.of(path) == number, "another file of the same size"
    before = path.stat()
    path.write_bytes(b"7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert remembered.of(path) == 7, "another time"


def test_what_cannot_be_made_is_not_remembered(tmp_path: Path, remembered: Remembered[int]) -> None:
    path = tmp_path / "number"
    with pytest.raises(FileNotFoundError):
        remembered.of(path)
    path.write_bytes(b"no number")
    with pytest.raises(ValueError, match="invalid literal"):
        remembered.of(path)
    path.write_bytes(b"8")
    assert remembered.of(path) == 8
    path.unlink()
    with pytest.raises(FileNotFoundError):
        remembered.of(path)
