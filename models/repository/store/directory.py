"""The directory remote keeps objects as files under one directory, which many machines may mount."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from models.errors import InvalidSource, NotFound, StoreFull, StoreUnavailable, disk_is_full
from models.repository.disk import durable
from models.repository.store.remote import IDENTITY, StoredObject

_PARTS: Final = ".parts"
"""Where files are written before they get their name."""
_ABANDONED_SECONDS: Final = 86400.0


class DirectoryRemote:
    """Objects are files. A write makes a file aside, syncs it and gives it its name: by a rename, or by a link, which
    fails where the name is taken."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self._root = root

    def get(self, path: str) -> bytes | None:
        with self._reaching(path):
            try:
                return (self._root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str, start: int, end: int) -> memoryview:
        with self._reaching(path):
            try:
                descriptor = os.open(self._root / path, os.O_RDONLY)
            except FileNotFoundError:
                raise NotFound(f"The store has no {path}") from None
            try:
                buffer = bytearray(end - start)
                return memoryview(buffer)[: _fill(descriptor, memoryview(buffer), start)]
            finally:
                os.close(descriptor)

    def file(self, path: str) -> Path:
        return self._root / path

    def put(self, path: str, data: bytes) -> None:
        with self._reaching(path), self._aside(path) as aside:
            durable.write(aside, data)
            aside.replace(self._root / path)

    def create(self, path: str, data: bytes) -> bool:
        with self._reaching(path), self._aside(path) as aside:
            durable.write(aside, data)
            try:
                os.link(aside, self._root / path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP):
                    raise
                raise InvalidSource("The store's file system has no hard links: choose another one") from None
        return True

    def upload(self, path: str, file: Path) -> None:
        with self._reaching(path), self._aside(path) as aside:
            shutil.copyfile(file, aside)
            durable.sync(aside)
            aside.replace(self._root / path)

    def head(self, path: str) -> StoredObject | None:
        with self._reaching(path):
            try:
                about = (self._root / path).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return _object(path, about)

    def list(self, prefix: str) -> list[StoredObject]:
        with self._reaching(prefix):
            return sorted(self._listed(prefix), key=lambda each: each.path)

    def delete(self, path: str) -> None:
        with self._reaching(path), suppress(FileNotFoundError):
            (self._root / path).unlink()
            durable.sync((self._root / path).parent)

    def _listed(self, prefix: str) -> Iterator[StoredObject]:
        for directory, directories, names in os.walk(self._root / prefix):
            directories[:] = [each for each in directories if each != _PARTS]
            for name in names:
                path = Path(directory) / name
                with suppress(FileNotFoundError):  # it is being deleted
                    about = path.stat()
                    yield _object(str(path.relative_to(self._root)), about)

    @contextmanager
    def _aside(self, path: str) -> Iterator[Path]:
        """Gives a place for the content of `path`, whose directory it makes. The names there are on disk at the end."""
        target = self._root / path
        if path != IDENTITY and not (self._root / IDENTITY).exists():
            raise StoreUnavailable(f"The store's directory has no {IDENTITY} any more: mount it again")
        durable.make_directory(target.parent)
        durable.make_directory(self._root / _PARTS)
        self._sweep()
        aside = self._root / _PARTS / uuid.uuid4().hex
        try:
            yield aside
            durable.sync(target.parent)
        finally:
            aside.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes what writers that died have left."""
        oldest = time.time() - _ABANDONED_SECONDS
        with suppress(FileNotFoundError):
            for path in (self._root / _PARTS).iterdir():
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)

    @contextmanager
    def _reaching(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            if disk_is_full(error):
                raise StoreFull(f"The store has no room for {path}: make some, then try again") from None
            raise StoreUnavailable(
                f"The store does not take or give {path}: {reason}; see that the directory of DOSIRAK_STORE_URL is "
                "mounted and can be written, then try again"
            ) from None


def _fill(descriptor: int, buffer: memoryview, start: int) -> int:
    """Reads into the buffer until it or the file ends. Returns the number of bytes."""
    done = 0
    while done < len(buffer):
        got = os.preadv(descriptor, [buffer[done:]], start + done)
        if not got:
            break
        done += got
    return done


def _object(path: str, about: os.stat_result) -> StoredObject:
    return StoredObject(path, about.st_size, about.st_mtime, f"{about.st_ino}-{about.st_mtime_ns}")
