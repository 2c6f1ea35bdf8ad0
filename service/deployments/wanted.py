"""Wanted deployments are those that a caller asked for by name. Where instances share records, each of them loads what
one was asked for, and unloads it when one is told to. The module loads nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from models.manifest import Manifest
from models.repository.repository import Repository

DEPLOYMENTS: Final = "deployments"


class Wanted(msgspec.Struct, frozen=True):
    """How a version is to be deployed: None is as the server's settings say."""

    replicas: int | None = None
    draft: str | None = None
    engine: str | None = None
    engine_options: Mapping[str, int | str] | None = None


class WantedDeployments:
    """Changes block and raise as `Repository.records` says; reads do not block."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._followed: dict[str, Wanted] = {}

    @property
    def are_shared(self) -> bool:
        return self._repository.records.shared

    def put(self, manifest: Manifest, wanted: Wanted | None) -> None:
        """Tells every instance how a version is to be deployed; None: no longer."""
        records, document = self._repository.records, f"{manifest.name}/{manifest.version}"
        if wanted is None and records.document(DEPLOYMENTS, document) is None:
            return
        with self._repository.locked(manifest.name):
            content = None if wanted is None else msgspec.json.encode(wanted)
            records.put_document(DEPLOYMENTS, document, content)

    def changes(self) -> tuple[dict[str, Wanted], list[str]]:
        """Returns what is wanted that this instance has not followed yet, and what is wanted no longer."""
        now = self._all()
        gone = [reference for reference in self._followed if reference not in now]
        for reference in gone:
            del self._followed[reference]
        return {each: wanted for each, wanted in now.items() if self._followed.get(each) != wanted}, gone

    def followed(self, reference: str, wanted: Wanted) -> None:
        """Takes note that this instance has done what is wanted."""
        self._followed[reference] = wanted

    def _all(self) -> dict[str, Wanted]:
        found = {}
        records = self._repository.records
        for document in records.documents(DEPLOYMENTS):
            if (content := records.document(DEPLOYMENTS, document)) is not None:
                found[document.replace("/", ":")] = msgspec.json.decode(content, type=Wanted)
        return found
