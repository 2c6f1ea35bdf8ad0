"""Verifying reads every byte of a version's directory again. It knows no repository."""

from __future__ import annotations

from pathlib import Path

from models.errors import Corrupt
from models.manifest import Manifest
from models.repository.disk import bento_store, staging


def verify(directory: Path, manifest: Manifest) -> None:
    """Raises Corrupt naming a file that is changed, missing or not ours."""
    for file in manifest.files:
        path = _regular(directory, file.path, manifest)
        if path.stat().st_size != file.size or staging.sha256_of(path) != file.sha256:
            raise Corrupt(f"{manifest.reference}: {file.path} is not what was published")
    if manifest.description:
        description = _regular(directory, bento_store.DESCRIPTION, manifest)
        if staging.sha256_of(description) != manifest.description:
            raise Corrupt(f"{manifest.reference}: {bento_store.DESCRIPTION} is not what was published")
    strangers = {path.name for path in directory.iterdir()} - {file.path for file in manifest.files} - staging.OUR_FILES
    if strangers:
        raise Corrupt(f"{manifest.reference}: {min(strangers)} was not published")


def _regular(directory: Path, name: str, manifest: Manifest) -> Path:
    path = directory / name
    if path.is_symlink() or not path.is_file():
        raise Corrupt(f"{manifest.reference}: {name} is missing or not a regular file")
    return path
