"""Giving disk space back: what crashed changes left, what belongs to no version, versions that nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import Conflict, NotFound
from models.repository import Repository
from models.storage import bento_store, staging
from models.storage.blobs import Blobs

ABANDONED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Collected:
    """`versions` that were deleted, `leftovers` of crashed changes, and the bytes that the rest gave back."""

    versions: tuple[str, ...]
    leftovers: tuple[str, ...]
    bytes: int


def collect(repository: Repository, keep: int | None = None, reason: str = "", actor: str = "") -> Collected:
    """Remove what belongs to no version; with `keep`, first all versions of each model but the newest so many, those
    that an alias holds, those in use, and the parents of what stays. Raises ValueError for a negative `keep`."""
    removed = () if keep is None else _thin_out(repository, keep, reason, actor)
    return Collected(removed, tuple(sweep(repository)), prune(repository))


def sweep(repository: Repository, older_than: float = ABANDONED_SECONDS) -> list[str]:
    """Remove what crashed changes left in `tmp` at least `older_than` seconds ago and point `latest` right again.

    Returns the names of what was removed. Staging directories of living processes are left alone at any age.
    """
    layout = repository.layout
    removed = staging.sweep(layout.temporary, older_than)
    for name in repository.models():
        with repository.locked(name):
            versions = repository.versions(name)
            bento_store.point_latest(layout.models / name, versions[-1].version if versions else None)
    return removed


def prune(repository: Repository) -> int:
    """Remove shared files, reports and engines' findings that belong to no version. Returns the bytes given back."""
    layout = repository.layout
    reports = set(layout.reports.glob("*/*.json"))
    findings = set(layout.engine.iterdir()) if layout.engine.is_dir() else set()
    for name in repository.models():  # listed after the files, so that what a new version brings is not among them
        for manifest in repository.versions(name):
            reports.discard(layout.report(name, manifest.version))
            findings = {path for path in findings if not path.name.startswith(manifest.base_digest)}
    freed = 0
    for path in reports | findings:
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    return freed + Blobs(layout.blobs).prune()


def _thin_out(repository: Repository, keep: int, reason: str, actor: str) -> tuple[str, ...]:
    if keep < 0:
        raise ValueError("keep at least 0 versions")
    removed = []
    for name in repository.models():
        versions = repository.versions(name)
        held = set(repository.aliases(name).values()) | {
            each.version for each in versions[max(0, len(versions) - keep) :]
        }
        staying = [each for each in versions if each.version in held]
        needed = {each.lineage.parent for each in staying}
        for manifest in versions:
            if manifest.version in held or manifest.reference in needed:
                continue
            try:
                repository.delete(name, manifest.version, reason, actor)
            except (Conflict, NotFound):
                continue  # in use, or an alias moved to it, or somebody else deleted it
            removed.append(manifest.reference)
    return tuple(removed)
