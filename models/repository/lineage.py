"""Versions descend from one another by their lineage: a conversion, an adapter, or what was made of these. This module
reads no disk."""

from __future__ import annotations

from collections.abc import Callable

from models.errors import RepositoryError
from models.manifest import Manifest


def descends(manifest: Manifest, ancestor: Manifest, find: Callable[[str], Manifest]) -> bool:
    """Returns whether a version was made of `ancestor`, directly or through others. `find` returns the version of a
    reference; one that is not there any more ends the search."""
    while manifest.lineage.parent_digest is not None:
        if manifest.lineage.parent_digest == ancestor.digest:
            return True
        try:
            manifest = find(manifest.lineage.parent or "")
        except RepositoryError:
            break
    return False
