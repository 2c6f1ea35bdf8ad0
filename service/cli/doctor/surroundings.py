"""This module finds what is around the host: the port, the data directory's owner, the default model, a compiler.

It tries things as serving would, and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from models.errors import RepositoryError
from models.imports.starter import DEMO, WEIGHTS, demo_is_wanted, first_is_there, publishing_bytes
from models.repository.standing import standings
from service.cli.doctor.checks import Surroundings
from service.cli.serve.checks import address, foreign_in, is_dosirak, resolve, try_to_listen
from service.cli.serve.command import entry_for
from service.deployments.needs import loaded_bytes
from service.engine.runner.native.build import COMPILERS
from service.settings import Settings
from service.storage.records import open_repository


def look(settings: Settings) -> Surroundings:
    """Returns what serving with these settings would find."""
    unwritable = _unwritable(settings.data_dir)
    model, loading, no_model, new_disk = _default_model(settings)
    return Surroundings(
        address(settings),
        _port_taken_by(settings),
        unwritable,
        model,
        loading,
        no_model,
        new_disk,
        settings.first_device,
        next(filter(None, map(shutil.which, COMPILERS)), ""),
        _breaches(settings),
    )


def _breaches(settings: Settings) -> tuple[str, ...]:
    """Returns a sentence for each gated alias whose version breaks its limits."""
    try:
        if not (settings.data_dir / "models").is_dir():
            return ()
        return tuple(each.sentence for each in standings(open_repository(settings), settings.gate) if each.broken)
    except (RepositoryError, OSError):
        return ()  # other checks say so


def _port_taken_by(settings: Settings) -> str:
    try:
        try_to_listen(*resolve(settings.host, settings.port), settings.port)
    except OSError as error:
        return "dosirak" if is_dosirak(settings) else error.strerror or str(error)
    return ""


def _unwritable(directory: Path) -> str:
    """Returns why the directory, or the nearest parent that exists, takes no file; "" where it takes one."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return f"{existing} is a file"
    if not os.access(existing, os.W_OK | os.X_OK):
        return "permission denied"
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"dosirak")
        foreign = foreign_in(directory) if existing == directory else None
    except OSError as error:
        return error.strerror or str(error)
    return f"{foreign.name} belongs to another user" if foreign is not None else ""


def _default_model(settings: Settings) -> tuple[str, int | None, str, int]:
    """Returns the default model's reference, the memory that it needs, why there is none, and the disk that its
    publishing takes. A directory without a repository stays as it is. Of a model that may be fetched or not, both are
    those of the demo model, which is served where it is not."""
    reference = settings.default_model
    name = reference.partition(":")[0].partition("@")[0]
    try:
        store = open_repository(settings) if (settings.data_dir / "models").is_dir() else None
        entry = entry_for(settings, store)
        if entry and store and first_is_there(store):
            reference = name = entry.name
        if name == DEMO and (store is None or demo_is_wanted(store)):
            size = sum(path.stat().st_size for path in WEIGHTS.iterdir())
            first = f"{entry.name} where the Python index gives it, or else " if entry else ""
            return f"{first}{reference}, published at the first start", loaded_bytes(size), "", publishing_bytes()
        if store is None:
            return reference, None, f"there is no version of the default model {reference}: the repository is empty", 0
        manifest = store.resolve(reference)
    except (RepositoryError, OSError) as error:
        return reference, None, f"the default model {reference} cannot be served: {error}", 0
    return manifest.reference, loaded_bytes(manifest.size), "", 0
