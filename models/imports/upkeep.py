"""Upkeep frees disk space: remains of crashed changes, files that belong to no version, and versions without use.
A store, where versions are shared through one, is cleared as well."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.errors import Conflict, Corrupt, InvalidReference, NotFound
from models.imports.hub import downloads
from models.manifest import Manifest
from models.repository.disk import durable, staging
from models.repository.disk.blobs import Blobs
from models.repository.disk.listing import matching, size_of
from models.repository.repository import Repository
from models.repository.store import pruning

ABANDONED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Collected:
    """The deleted `versions`, the `leftovers` of crashed changes, and the bytes that the other files freed."""

    versions: tuple[str, ...]
    leftovers: tuple[str, ...]
    bytes: int


def collect(repository: Repository, keep: int | None = None, reason: str = "", actor: str = "") -> Collected:
    """Remove files that belong to no version, unfinished downloads among them. With `keep`, first delete versions of
    each model. It keeps the newest `keep` versions, versions with an alias, on trial or in use, and all versions
    that these were made from. Raises ValueError for a negative `keep`, and Unreachable."""
    removed = () if keep is None else _thin_out(repository, keep, reason, actor)
    freed = prune(repository) + downloads.clear(repository.layout.data_dir)
    if repository.mirror is not None:
        freed += pruning.prune(repository.mirror.store)
    return Collected(removed, tuple(sweep(repository)), freed)


def sweep(repository: Repository, older_than: float = ABANDONED_SECONDS) -> list[str]:
    """Remove what crashed changes left in `tmp` at least `older_than` seconds ago and point `latest` right again.

    Returns the names of what was removed. Staging directories of living processes are left alone at any age.
    """
    layout = repository.layout
    removed = staging.sweep(layout.temporary, older_than)
    for name in repository.models():
        with repository.locked(name):
            repository.point_latest(name)
    return removed


def prune(repository: Repository) -> int:
    """Remove shared files, reports, profiles and engines' findings that belong to no version. What belongs to a version
    whose manifest is damaged stays. Returns the bytes given back. Raises Unreachable, and removes nothing."""
    layout = repository.layout
    reports = set(matching(layout.reports, "*/*.json"))
    profiles = set(matching(layout.profiles, "*/*"))
    listed = layout.engine.iterdir() if layout.engine.is_dir() else ()
    findings = {path for path in listed if path.suffix != durable.TEMPORARY}  # an engine writes it now
    for path in matching(layout.models, "*/*"):  # after the files, so that what a new version brings is not among them
        name, version = path.parent.name, path.name
        reports.discard(layout.report(name, version))
        profiles.discard(layout.profiles_of(name, version))
        findings = _without_those_of(repository, name, version, findings)
    freed = 0
    for path in reports | findings:
        freed += size_of(path)
        path.unlink(missing_ok=True)
    for directory in profiles:
        freed += sum(map(size_of, matching(directory, "**")))
        shutil.rmtree(directory, ignore_errors=True)
    return freed + Blobs(layout.blobs).prune()


def _without_those_of(repository: Repository, name: str, version: str, findings: set[Path]) -> set[Path]:
    """Returns the findings that are not of a version. A damaged manifest does not say which are its own."""
    try:
        digest = repository.get(name, version).base_digest
    except (NotFound, InvalidReference):
        return findings
    except Corrupt:
        return set()
    return {path for path in findings if not path.name.startswith(digest)}


def _thin_out(repository: Repository, keep: int, reason: str, actor: str) -> tuple[str, ...]:
    if keep < 0:
        raise ValueError("keep at least 0 versions")
    known = {each.reference: each for name in repository.models() for each in repository.versions(name)}
    needed: set[str] = set()
    for name in repository.models():
        newest = [each.version for each in repository.versions(name)][::-1][:keep]
        for version in {*newest, *repository.aliases(name).values()}:
            needed |= _line(f"{name}:{version}", known)
    removed = []
    for reference, manifest in sorted(known.items(), key=lambda item: item[1].created_at, reverse=True):
        if reference in needed:
            continue
        try:
            repository.delete(manifest.name, manifest.version, reason, actor)
        except NotFound:
            continue  # another caller deleted it
        except Conflict:  # in use, on trial, or an alias moved to it; what it was made from is older and comes later
            needed |= _line(reference, known)
            continue
        removed.append(reference)
    return tuple(reversed(removed))


def _line(reference: str, known: Mapping[str, Manifest]) -> set[str]:
    """Returns a version and all versions that it was made from, as far as they exist."""
    line: set[str] = set()
    version = known.get(reference)
    while version is not None and version.reference not in line:
        line.add(version.reference)
        version = known.get(version.lineage.parent or "")
    return line
