"""Judging gathers what the gate asks for before an alias moves to a version: its report, and the version that it would
replace. It moves nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import msgspec

from models.errors import Corrupt, NotFound, RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest
from models.repository.disk.journal import Entry
from models.repository.gate import Limits, Measured
from models.repository.lineage import descends
from models.repository.report import Comparison, Report


class Versions(Protocol):
    """What judging reads of a repository."""

    def get(self, name: str, version: str) -> Manifest:
        """Raises NotFound and Corrupt."""

    def resolve(self, reference: str) -> Manifest:
        """Raises InvalidReference, NotFound and Corrupt."""

    def report(self, manifest: Manifest) -> Report | None:
        """Raises Corrupt."""

    def history(self, name: str, alias: str) -> list[Entry]:
        """The changes of an alias, oldest first."""


def judged(
    versions: Versions, manifest: Manifest, alias: str, limits: Limits
) -> tuple[Measured, Limits, Measured | None]:
    """Returns the arguments of `gate.broken` and `gate.checks`. A version that was made of the candidate stands for
    nothing. Raises Corrupt for a damaged report of the candidate."""
    incumbent, report = _incumbent(versions, manifest.name, alias), versions.report(manifest)
    if incumbent and descends(incumbent.manifest, manifest, versions.resolve):
        incumbent = None
    if report and report.compared and _descends(versions, report.compared, manifest):
        report = msgspec.structs.replace(report, compared=None)
    return Measured(manifest, report), limits, incumbent


def _descends(versions: Versions, compared: Comparison, ancestor: Manifest) -> bool:
    try:
        found = versions.resolve(compared.reference)
    except RepositoryError:
        return False
    return found.digest == compared.digest and descends(found, ancestor, versions.resolve)


def _incumbent(versions: Versions, name: str, alias: str) -> Measured | None:
    """Returns the version that the alias points to; for one that was removed, the last of its versions that is still
    there; for one that has none, that of production. None where there is none, or where it is damaged: it may be
    replaced."""
    entries = [entry for each in (DEFAULT_ALIAS, alias) for entry in versions.history(name, each)]
    for version in dict.fromkeys(entry.version or entry.previous or "" for entry in reversed(entries)):
        with suppress(NotFound):
            try:
                manifest = versions.get(name, version)
                return Measured(manifest, versions.report(manifest))
            except Corrupt:
                return None
    return None
