"""The completion of words in a shell: the models, versions and aliases of the repository. It changes nothing and stays
silent where there is no repository."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from models.errors import RepositoryError
from models.imports.catalogue import entries
from models.repository.repository import Repository
from service.settings import Settings


def complete_reference(incomplete: str) -> list[str]:
    """Returns the references that begin as typed: `name`, `name:version` and `name@alias`."""
    return [each for each in _silently() if each.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Returns the references and the catalogue's names that begin as typed."""
    known = complete_reference(incomplete)
    return known + [name for name in entries() if name.startswith(incomplete) and name not in known]


def complete_name(incomplete: str) -> list[str]:
    """Returns the names of models that begin as typed."""
    return [each for each in _silently() if each.startswith(incomplete) and not {":", "@"} & set(each)]


def _silently() -> list[str]:
    try:
        directory = Settings().data_dir
        return list(_references(Repository(directory))) if directory.is_dir() else []
    except (ValidationError, RepositoryError, OSError):
        return []


def _references(store: Repository) -> Iterator[str]:
    for name in store.models():
        yield name
        yield from (manifest.reference for manifest in store.versions(name))
        yield from (f"{name}@{alias}" for alias in store.aliases(name))
