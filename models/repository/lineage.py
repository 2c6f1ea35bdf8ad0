"""Versions descend from one another by their lineage: a conversion, an adapter, or what was made of these. This module
reads no disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from models.errors import RepositoryError
from models.manifest import Manifest


def parent_of(manifest: Manifest, find: Callable[[str], Manifest]) -> Manifest | None:
    """Returns the version that a version was made of; None where none has its name and its digest."""
    if manifest.lineage.parent is None:
        return None
    try:
        parent = find(manifest.lineage.parent)
    except RepositoryError:
        return None
    return parent if parent.digest == manifest.lineage.parent_digest else None


def ancestors(manifest: Manifest, find: Callable[[str], Manifest]) -> Iterator[Manifest]:
    """Yields the versions that a version was made of, its parent first. `find` returns the version of a reference.

    A version that is not there any more ends the search. So does a version with another digest than the lineage says:
    an export that is imported elsewhere keeps the names of where it was made. A digest that came before ends the search
    too: it covers no lineage, so the lineages of foreign manifests may lead in a circle."""
    passed = {manifest.digest}
    while (parent := parent_of(manifest, find)) is not None and parent.digest not in passed:
        passed.add(parent.digest)
        yield (manifest := parent)


def descends(manifest: Manifest, ancestor: Manifest, find: Callable[[str], Manifest]) -> bool:
    """Returns whether a version was made of `ancestor`, directly or through others, as far as `ancestors` goes."""
    line = chain((manifest,), ancestors(manifest, find))
    return any(each.lineage.parent_digest == ancestor.digest for each in line)
