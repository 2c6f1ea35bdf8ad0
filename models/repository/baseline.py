"""The baseline is the version that another version is compared with. This module reads the repository and no report."""

from __future__ import annotations

from models.errors import RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest
from models.repository.lineage import descends
from models.repository.repository import Repository


def baseline_of(repository: Repository, manifest: Manifest) -> Manifest | None:
    """Returns the parent; else what `production` points to, else the newest other version of the model; never a version
    that was made of this one. None where no version splits text in the same way."""
    names = [manifest.lineage.parent, f"{manifest.name}@{DEFAULT_ALIAS}"]
    names += [each.reference for each in reversed(repository.versions(manifest.name))]
    for name in filter(None, names):
        try:
            found = repository.resolve(name)
        except RepositoryError:
            continue
        is_other = found.digest != manifest.digest and not descends(found, manifest, repository.resolve)
        if is_other and found.vocab_size == manifest.vocab_size:
            return found
    return None
