"""Published versions are found by their lineage: those of a source, so that nothing is fetched or converted twice, and
the baseline that a version is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from models.errors import Conflict, NotFound, RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest, Precision
from models.repository.lineage import descends, parent_of
from models.repository.repository import Repository

_MOST: Final = 63


def versions_of(repository: Repository, source: str, name: str | None = None) -> list[Manifest]:
    """Returns the versions whose lineage names `source`, oldest first; of the model `name` alone, where it is given.
    Versions with an adapter are other models."""
    names = repository.models() if name is None else [name]
    found = (version for each in names for version in repository.versions(each))
    of_source = (version for version in found if version.lineage.source == source and not version.has_adapter)
    return sorted(of_source, key=lambda version: version.created_at)


def pointed_to(repository: Repository, versions: Iterable[Manifest]) -> Manifest | None:
    """Returns the one of the versions that its model's production points to."""
    return next((each for each in versions if repository.aliases(each.name).get(DEFAULT_ALIAS) == each.version), None)


def newest_of(versions: Sequence[Manifest], precision: Precision) -> Manifest | None:
    """Returns the newest one in a precision."""
    return next((each for each in reversed(versions) if each.precision == precision), None)


def production(repository: Repository, name: str) -> Manifest | None:
    """Returns the version that the alias points to, if it points to one that is there."""
    try:
        return repository.resolve(f"{name}@{DEFAULT_ALIAS}")
    except NotFound:
        return None


def name_for(text: str) -> str:
    """Returns a name in the repository for a source's last part: `Qwen2.5-0.5B-Instruct` is `qwen2.5-0.5b-instruct`.
    Raises Conflict where nothing is left of it."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:_MOST].strip("._-")
    if not name:
        raise Conflict(f"{text[:80]!r} makes no name: choose one with --name")
    return name


def require_own_name(repository: Repository, name: str, kind: str | tuple[str, ...]) -> None:
    """Raises Conflict for a name whose newest version is of a source that does not begin with `kind`: a hub id, or
    `directory`. So two checkpoints of one name do not become versions of one model by accident."""
    versions = repository.versions(name)
    if versions and not versions[-1].lineage.source.startswith(kind):
        raise Conflict(
            f"{name} is another model here, made of {versions[-1].lineage.source}: choose a name with --name"
        )


def baseline_of(repository: Repository, manifest: Manifest) -> Manifest | None:
    """Returns the parent; else what `production` points to, else the newest other version of the model; never a version
    that was made of this one. None where no version splits text in the same way."""
    parent = parent_of(manifest, repository.resolve)
    names = [parent.reference] if parent else []
    names += [f"{manifest.name}@{DEFAULT_ALIAS}"]
    names += [each.reference for each in reversed(repository.versions(manifest.name))]
    for name in names:
        try:
            found = repository.resolve(name)
        except RepositoryError:
            continue
        is_other = found.digest != manifest.digest and not descends(found, manifest, repository.resolve)
        if is_other and found.vocab_size == manifest.vocab_size:
            return found
    return None
