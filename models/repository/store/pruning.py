"""Pruning removes blobs that no version names, an hour after it has noted that. It trusts the store's clock alone.

A publisher uploads blobs before its manifest, and uses blobs that are there. So pruning goes in two steps:

    note     a blob without a version gets a mark, `unused/<sha256>`; a blob of the last day without a mark is left
    remove   a marked blob that still has no version is removed an hour later

A publisher looks for marks right before it publishes, and uploads a marked blob again. A blob that was unmarked then
gets its mark later, and is looked at again later than the manifest is there. A publisher may take a mark away while a
pruning is at work, so pruning reads the new manifests right before each removal, and a publisher looks for its blobs
once more behind its manifest. A blob is lost only if a publisher writes its manifest and looks for its blobs, both in
the milliseconds between that reading and the removal. `dosirak store verify` names such a blob.
"""

from __future__ import annotations

from typing import Final

from models.errors import Corrupt
from models.manifest import Manifest
from models.repository.store.shared_store import SharedStore, Version, blob, blobs_of, unused

GRACE_SECONDS: Final = 3600.0
UPLOAD_SECONDS: Final = 86400.0
"""How long a publisher may take from the first blob to the manifest before its blobs are uploaded again."""
_CLOCK: Final = "pruned.json"


def prune(store: SharedStore, grace: float = GRACE_SECONDS, upload: float = UPLOAD_SECONDS) -> int:
    """Removes blobs that were marked `grace` seconds ago, and marks others without a version. Returns the freed bytes.
    Raises Corrupt, and removes no more, where a manifest cannot be read."""
    now = _now(store)
    marks = {_sha256(each.path): each.modified for each in store.remote.list("unused/")}
    blobs = {_sha256(each.path): each for each in store.remote.list("blobs/")}
    named = _Named(store)
    named.read()  # after the marks: a version whose publisher saw no mark is among them
    _clear_deleted(store)
    freed = 0
    for sha256, since in marks.items():
        if sha256 in named.blobs or sha256 not in blobs:
            store.remote.delete(unused(sha256))
        elif since <= now - grace and store.remote.head(unused(sha256)) is not None and sha256 not in named.read():
            store.remote.delete(blob(sha256))
            store.remote.delete(unused(sha256))
            freed += blobs[sha256].size
    for sha256, found in blobs.items():
        if sha256 not in named.blobs and sha256 not in marks and found.modified <= now - upload:
            store.remote.create(unused(sha256), b"")
    return freed


class _Named:
    """The blobs that the store's versions name. A manifest never changes, so each is read once."""

    def __init__(self, store: SharedStore) -> None:
        self.blobs: set[str] = set()
        self._store = store
        self._versions: set[Version] = set()

    def read(self) -> set[str]:
        """Adds the blobs of versions that are new. Returns all blobs."""
        new = sorted(self._store.listing().versions - self._versions)
        self.blobs.update(*(_all_blobs(manifest) for manifest in self._store.manifests(new) if manifest))
        self._versions.update(new)
        return self.blobs


def _all_blobs(manifest: Manifest) -> set[str]:
    return {*blobs_of(manifest), manifest.description}


def _clear_deleted(store: SharedStore) -> None:
    """Removes the manifests that a deletion, or a publisher of a deleted number, left when it died."""
    listing = store.listing()
    for version in listing.deleted & (listing.manifests | listing.reports.keys()):
        store.clear(*version)


def _now(store: SharedStore) -> float:
    """Returns the time by the store's clock."""
    store.remote.put(_CLOCK, b"{}\n")
    found = store.remote.head(_CLOCK)
    if found is None:
        raise Corrupt("The store lost an object that was just written; nothing was removed")
    return found.modified


def _sha256(path: str) -> str:
    return path.rpartition("/")[2]
