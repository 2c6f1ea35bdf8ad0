"""An archive is a version as one file: an uncompressed tar of its files, its manifest and its report.

`bentoml models export` writes such a file too, compressed. Both can be imported again. Only regular files with plain
names are read from an archive, at its top or below one directory. A link, a device, a name that occurs twice and a name
that leads elsewhere are refused by name, before any file is written.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Never, Self

from models.errors import Conflict, InvalidSource, sentence_of
from models.manifest import Manifest, is_file_name
from models.repository.disk import durable, staging
from models.repository.repository import Repository

REPORT = "report.json"
_MAX_MEMBERS = 4096
_MAX_HEADER_BYTES = 64 << 10
"""Of what stands before a file, such as its long name; the library reads it whole."""
_MOST_RESERVE_BYTES = 1 << 30
"""What an archive leaves of a disk, or a tenth of the disk where that is less: others write there meanwhile."""


def export(repository: Repository, manifest: Manifest, target: Path) -> int:
    """Write the version to `target`, which appears whole or not at all, durably; returns its size in bytes. Its files
    are read and compared with the manifest on the way. Raises Conflict when `target` exists or its directory takes no
    file, and Corrupt."""
    if target.exists():
        raise Conflict(f"{target.name} exists; name another file")
    beside = target.with_name(f".{target.name}.part")
    directory = repository.path(manifest)
    _require_writable(beside)
    try:
        with repository.lease(manifest), tarfile.open(beside, "w", format=tarfile.PAX_FORMAT) as archive:
            repository.verify(manifest)
            for path in sorted(directory.iterdir()):
                archive.add(path, path.name, recursive=False, filter=_anonymous)
            if report := repository.report(manifest):
                content = report.to_json()
                about = tarfile.TarInfo(REPORT)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        durable.sync(beside)
        beside.replace(target)
        durable.sync(target.parent)
    finally:
        beside.unlink(missing_ok=True)
    return target.stat().st_size


def _require_writable(beside: Path) -> None:
    try:
        beside.touch()
    except OSError as error:
        raise Conflict(
            f"The directory {beside.parent} takes no file ({sentence_of(error)}): make it, or name another one"
        ) from None


def is_archive(path: Path) -> bool:
    """Whether the file can be read as a tar, compressed or not."""
    try:
        with path.open("rb") as stream, tarfile.open(fileobj=stream, tarinfo=_Member):
            return True
    except (InvalidSource, RecursionError):  # one that `unpack` refuses
        return True
    except (OSError, tarfile.TarError, EOFError):
        return False


def unpack(path: Path, directory: Path) -> None:
    """Copies the archive's files into `directory`, which is empty. Raises InvalidSource, which names a refused file."""
    try:
        with tarfile.open(path, "r:*", tarinfo=_Member) as archive:
            for member in _members(archive, path.name, _room(directory)):
                _write(archive, member, directory)
    except (tarfile.TarError, EOFError, OSError, RecursionError) as error:
        raise InvalidSource(f"{path.name} is a damaged archive: {type(error).__name__}") from None


class _Member(tarfile.TarInfo):
    """An entry's header; one that makes the library read without end into memory is refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type == tarfile.GNUTYPE_SPARSE:
            member._refuse_holes()
        if member.size < 0 or (member.size > _MAX_HEADER_BYTES and member.type not in tarfile.REGULAR_TYPES):
            raise InvalidSource(f"The archive has a header of {member.size:,} bytes before {member.name[:80]!r}")
        return member

    def _refuse_holes(self, *_: object) -> Never:
        raise InvalidSource(f"The archive holds {self.name[:80]!r} with holes: only plain files are accepted")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_holes


def _room(directory: Path) -> int:
    """Returns the bytes that an archive's files may take there."""
    disk = shutil.disk_usage(directory)
    return disk.free - min(disk.total // 10, _MOST_RESERVE_BYTES)


def _members(archive: tarfile.TarFile, name: str, room: int) -> list[tarfile.TarInfo]:
    """The regular files, in order; directories are passed over. Each is looked at before what it holds is passed."""
    members: dict[str, tarfile.TarInfo] = {}
    tops = set()
    for number, member in enumerate(archive):
        if number >= _MAX_MEMBERS:
            raise InvalidSource(f"{name} holds more than {_MAX_MEMBERS:,} entries")
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.isdir() and len(parts) < 2 and ".." not in parts:
            continue
        if not member.isreg() or member.name.startswith("/") or not 0 < len(parts) < 3 or not is_file_name(parts[-1]):
            raise InvalidSource(f"{name} holds {member.name[:80]!r}: only plain files, in one directory, are accepted")
        room -= member.size
        if room < 0:
            raise InvalidSource(f"{name} holds more than the disk has room for, beside what stays free: free some")
        if parts[-1] in members:
            raise InvalidSource(f"{name} holds {parts[-1]} twice")
        members[parts[-1]] = member
        tops.add(tuple(parts[:-1]))
    if len(tops) != 1 or ".." in next(iter(tops)):
        raise InvalidSource(f"{name} must hold plain files in one directory")
    return list(members.values())


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, directory: Path) -> None:
    reading = archive.extractfile(member)
    assert reading is not None  # a regular file
    with reading, (directory / member.name.rsplit("/", 1)[-1]).open("xb") as writing:
        shutil.copyfileobj(reading, writing, staging.READ_BYTES)


def _anonymous(about: tarfile.TarInfo) -> tarfile.TarInfo:
    about.uid = about.gid = 0
    about.uname = about.gname = ""
    return about
