"""Versions descend from one another by their lineage: a conversion, an adapter, or what was made of these. This module
reads no disk."""

from __future__ import annotations

from collections.abc import Iterable

from models.manifest import Manifest


def descendants_of(versions: Iterable[Manifest], ancestor: Manifest) -> frozenset[str]:
    """Returns the digests of those `versions` that were made of `ancestor`, directly or through others of them."""
    known = list(versions)
    family, before = {ancestor.digest}, 0
    while len(family) > before:
        before = len(family)
        family |= {each.digest for each in known if each.lineage.parent_digest in family}
    return frozenset(family - {ancestor.digest})
