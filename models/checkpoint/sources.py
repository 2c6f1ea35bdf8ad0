"""A source of an import is a directory, an archive, a hub snapshot, or a model that BentoML itself stored.

This module parses no model file."""

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from models.archive import is_archive, unpack
from models.errors import InvalidReference, InvalidSource, NotFound
from models.manifest import ModelReference, is_file_name
from models.repository import Repository

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_COPY_BYTES = 1 << 20
_REFUSED_SUFFIXES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".h5", ".keras", ".msgpack", ".joblib", ".dill"}
    | {".py", ".pyc", ".so"}
)
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", "README.md", "LICENSE*"]


@dataclass(frozen=True, slots=True)
class Source:
    """A readable directory and its name in messages. Symbolic links may only lead into `links_within`, if at all."""

    directory: Path
    description: str
    links_within: Path | None = None

    def files(self) -> list[str]:
        """Names of the plain files (or allowed links to them) in the directory itself, sorted; others are left out."""
        return sorted(path.name for path in self.directory.iterdir() if is_file_name(path.name) and path.is_file())

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises InvalidSource when it is a link to elsewhere or no plain file."""
        path = self.directory / name
        if path.is_symlink():
            target = path.resolve()
            if self.links_within is None or not target.is_relative_to(self.links_within.resolve()):
                raise InvalidSource(f"{name} is a symbolic link; replace it with the file it points to")
            path = target
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidSource(f"{name} is not a plain file")
        return os.fdopen(descriptor, "rb")

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


def open_source(repository: Repository, source: str, unpacked: Path, revision: str | None = None) -> Source:
    """Find `source`, downloading it when it is a hub id; an archive goes to the empty directory `unpacked`. Raises
    InvalidSource saying which forms there are.

    A directory wins over a hub id of the same text, so that a download made by hand is used where there is no network.
    """
    if source and "\0" not in source and len(source) < 4096 and Path(source).is_dir():
        return Source(Path(source).resolve(), "directory")
    if source and "\0" not in source and len(source) < 4096 and is_archive(Path(source)):
        unpack(Path(source), unpacked)
        return Source(unpacked, f"archive {Path(source).name}")
    if _HUB_ID.fullmatch(source) and ".." not in source:
        return _download(source, revision)
    try:
        reference = ModelReference.parse(source)
        return Source(repository.foreign(reference), f"bentoml {reference}")
    except (InvalidReference, NotFound):
        raise InvalidSource(
            f"{source[:80]!r} is no source: give a directory or a tar archive of this machine, a hub id org/name, or "
            "the name:version of a model in the BentoML store"
        ) from None


def _download(hub_id: str, revision: str | None) -> Source:
    if revision is not None and not _REVISION.fullmatch(revision):
        raise InvalidSource(f"{revision[:80]!r} is no revision: give a branch, a tag or a commit")
    from huggingface_hub import snapshot_download

    try:
        snapshot = Path(snapshot_download(hub_id, revision=revision, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # the client raises its own, httpx's and the system's errors
        raise InvalidSource(
            f"{hub_id} could not be had from the hub ({type(error).__name__}); where there is no network or no access, "
            "download it elsewhere and import the directory"
        ) from error
    return Source(snapshot, f"{hub_id}@{snapshot.name}", links_within=snapshot.parent.parent)
