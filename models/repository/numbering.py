"""Numbering says which versions of a model are free and which is the next: a version is never used twice, not even
after it is deleted.

A caller with much work before its publication asks first, with `Repository.taken`, so that no work is done for a
version that cannot be had. The publication decides, under the model's lock.
"""

from __future__ import annotations

from collections.abc import Set

from models.errors import Conflict
from models.manifest import ModelReference
from models.repository.disk import bento_store


def require_free(reference: ModelReference, used: Set[str]) -> None:
    """Raises Conflict for a version that nothing can be published as."""
    if reference.version == bento_store.LATEST:
        raise Conflict(f"{reference.version!r} cannot be a version: BentoML means the newest one by it")
    if reference.version in used:
        raise Conflict(f"{reference} exists or once existed; publish under another version")


def next_number(used: Set[str]) -> str:
    """Returns the whole number behind all numbers among the versions."""
    return str(1 + max((int(each) for each in used if each.isascii() and each.isdigit()), default=0))


def beside(version: str, used: Set[str]) -> str | None:
    """Returns the version for what is published before `version`: None, for the next number, or the number behind that
    where `version` is the next number itself."""
    following = next_number(used)
    return next_number({following}) if following == version else None
