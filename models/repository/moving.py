"""Moving pushes the versions of a data directory to a store, and says what a store holds and whether it is whole."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from models.errors import Conflict, NotFound, RepositoryError
from models.manifest import Manifest
from models.progress import Progress, silent
from models.repository.repository import Repository
from models.repository.store.fetching import PART_BYTES
from models.repository.store.mirror import Mirror
from models.repository.store.shared_store import SharedStore, blob, blobs_of


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store holds: versions by name, deleted ones, reports; blobs, their bytes, and those that wait to be
    pruned."""

    id: str
    models: dict[str, int]
    deleted: int
    reports: int
    blobs: int
    bytes: int
    unused: int


def mirror_of(repository: Repository) -> Mirror:
    """Raises Conflict for a repository without a store."""
    if repository.mirror is None:
        raise Conflict("No store is set: set DOSIRAK_STORE_URL")
    return repository.mirror


def push(repository: Repository, progress: Progress = silent) -> list[str]:
    """Publishes to the store, under their numbers, the versions that are in the data directory alone, each one checked
    before, with its report; not those that the shared records say are deleted. Returns their references. It goes on
    where an earlier push ended. Raises Conflict where the store has another version of that number by now."""
    mirror, pushed = mirror_of(repository), list[str]()
    waiting = [each for each in mirror.not_stored() if not _is_deleted(repository, each)]
    for reference in waiting:
        progress(len(pushed) / len(waiting), reference)
        manifest = repository.resolve(reference)
        with repository.lease(manifest):
            _push(repository, mirror, manifest)
        pushed.append(reference)
    return pushed


def _is_deleted(repository: Repository, reference: str) -> bool:
    name, _, version = reference.partition(":")
    return repository.records.shared and version in repository.records.history(name).deleted


def verify(store: SharedStore) -> list[str]:
    """Reads every blob that a version names. Returns a sentence for each that is missing or not what was published, and
    for each manifest that cannot be read."""
    wrong, checked = list[str](), dict[str, str]()
    for name, version in sorted(store.listing().versions):
        try:
            manifest = store.manifest(name, version)
        except RepositoryError as error:
            wrong.append(str(error))
            continue
        for sha256 in () if manifest is None else (*blobs_of(manifest), manifest.description):
            if sha256 not in checked:
                checked[sha256] = _wrong(store, sha256)
            if checked[sha256]:
                wrong.append(f"{name}:{version}: {checked[sha256]}")
    return wrong


def contents(store: SharedStore) -> Contents:
    listing, blobs = store.listing(), store.remote.list("blobs/")
    models = dict[str, int]()
    for name, _ in sorted(listing.versions):
        models[name] = models.get(name, 0) + 1
    return Contents(
        store.identity,
        models,
        len(listing.deleted),
        len(listing.reports),
        len(blobs),
        sum(each.size for each in blobs),
        len(store.remote.list("unused/")),
    )


def _push(repository: Repository, mirror: Mirror, manifest: Manifest) -> None:
    directory = repository.path(manifest)
    if not manifest.description:
        raise Conflict(
            f"{manifest.reference} is of a release before there was a checksum: import it again, then delete"
        )
    repository.check(manifest)
    report = repository.report(manifest)
    if not mirror.publish(manifest, directory):
        raise Conflict(f"The store has or had another {manifest.reference}: import this one under another name")
    if report is not None:
        mirror.put_report(manifest, report.to_json())


def _wrong(store: SharedStore, sha256: str) -> str:
    stored = store.remote.head(blob(sha256))
    if stored is None:
        return f"the store has no blob {sha256}"
    digest = hashlib.sha256()
    for start in range(0, stored.size, PART_BYTES):
        try:
            digest.update(store.remote.read(blob(sha256), start, min(stored.size, start + PART_BYTES)))
        except NotFound:
            return f"the store has no blob {sha256} any more"
    return "" if digest.hexdigest() == sha256 else f"the store's blob {sha256} is not what was published"
