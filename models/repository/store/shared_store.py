"""The shared store keeps published versions for every instance, as objects of a remote. It knows no data directory.

    dosirak.json                       marks the store as ours: its format, its id, when it was made
    database.json                      which database its instances share (`repository.store.binding`)
    blobs/<sha256>                     files of versions, by content; `model.yaml` too
    manifests/<name>/<version>.json    a published version; the write of this object publishes it
    deleted/<name>/<version>.json      a deleted version, whose number is never used again; this write deletes it
    reports/<name>/<version>.json      its report
    unused/<sha256>                    when a blob was found to be of no version (`repository.store.pruning`)

Manifests and deletions are created, never replaced: of two instances that publish one number, one succeeds.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from models.errors import Conflict, Corrupt, InvalidReference
from models.manifest import Manifest, ModelReference
from models.repository.disk.journal import timestamp
from models.repository.store.remote import IDENTITY, Remote, StoredObject
from models.repository.store.remotes import remote_of

FORMAT: Final = 1
_AT_ONCE: Final = 8
"""Requests in flight for many small objects."""
Version = tuple[str, str]
"""A version's name and number."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a store holds: its versions; those that were deleted; reports, by their tags."""

    manifests: frozenset[Version]
    deleted: frozenset[Version]
    reports: dict[Version, str]

    @property
    def versions(self) -> frozenset[Version]:
        return self.manifests - self.deleted


class SharedStore:
    """One store. Safe to use from many threads, processes and machines. Methods raise StoreUnavailable."""

    def __init__(self, remote: Remote, identity: str) -> None:
        self.remote = remote
        self.identity = identity

    @classmethod
    def open(cls, url: str) -> Self:
        """Returns the store at a URL. Raises Conflict for a place that is no store of ours, with what to do."""
        remote = remote_of(url)
        found = remote.get(IDENTITY)
        if found is None:
            raise Conflict(f"{url} is no store yet, for it has no {IDENTITY}: make one with `dosirak store init`")
        return cls(remote, _identity(url, found))

    @classmethod
    def init(cls, url: str) -> Self:
        """Makes a store of an empty place; a store of ours stays as it is. Raises Conflict for a place with other
        objects, and for one that does not keep conditional writes."""
        remote = remote_of(url)
        if remote.get(IDENTITY) is None:
            if remote.list(""):
                raise Conflict(f"{url} holds other objects: choose an empty directory, or another prefix")
            fresh = {"format": FORMAT, "id": uuid.uuid4().hex, "created_at": timestamp(datetime.now(UTC))}
            remote.create(IDENTITY, json.dumps(fresh, indent=2).encode() + b"\n")
        if remote.create(IDENTITY, b"{}"):
            remote.delete(IDENTITY)
            raise Conflict(
                f"{url} replaces an object that a write with If-None-Match: * must not replace, so two instances could "
                "publish one version: choose a store that keeps conditional writes"
            )
        return cls.open(url)

    # Versions

    def listing(self) -> Listing:
        """Returns what is there now. Deletions are read last, so that no deleted version is taken for a living one."""
        manifests, reports = self._versions("manifests/"), self._versions("reports/")
        return Listing(
            frozenset(manifests),
            frozenset(self._versions("deleted/")),
            {version: found.tag for version, found in reports.items()},
        )

    def numbers(self, name: str) -> set[str]:
        """Returns the versions of a model that are or were there."""
        return {version for kind in ("manifests", "deleted") for _, version in self._versions(f"{kind}/{name}/")}

    def manifest(self, name: str, version: str) -> Manifest | None:
        """Returns a published manifest, or None. Raises Corrupt."""
        content = self.remote.get(_path("manifests", name, version))
        if content is None or self.is_deleted(name, version):
            return None
        try:
            manifest = Manifest.from_json(content)
        except Corrupt as error:
            raise Corrupt(f"{name}:{version}: the store's {error}") from None
        if (manifest.name, manifest.version) != (name, version):
            raise Corrupt(f"{name}:{version}: the store's manifest is of {manifest.reference}")
        return manifest

    def manifests(self, versions: Iterable[Version]) -> list[Manifest | None]:
        """Returns many manifests, in order. Raises Corrupt."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda version: self.manifest(*version), versions))

    def publish(self, manifest: Manifest) -> bool:
        """Publishes a version whose blobs are there; returns False where its number was taken already."""
        path, content = _path("manifests", manifest.name, manifest.version), manifest.to_json().encode()
        if not self.remote.create(path, content) and self.remote.get(path) != content:
            return False  # equal content is our own, whose first answer was lost
        if not self.is_deleted(manifest.name, manifest.version):
            return True
        self.remote.delete(path)
        return False

    def delete(self, manifest: Manifest, reason: str, actor: str) -> None:
        """Deletes a version; its number stays used. Doing it again does no harm."""
        name, version = manifest.name, manifest.version
        deletion = {"digest": manifest.digest, "reason": reason, "actor": actor, "time": timestamp(datetime.now(UTC))}
        self.remote.create(_path("deleted", name, version), json.dumps(deletion, ensure_ascii=False).encode() + b"\n")
        self.clear(name, version)

    def clear(self, name: str, version: str) -> None:
        """Removes what is left of a deleted version."""
        self.remote.delete(_path("reports", name, version))
        self.remote.delete(_path("manifests", name, version))

    def is_deleted(self, name: str, version: str) -> bool:
        return self.remote.head(_path("deleted", name, version)) is not None

    def report(self, name: str, version: str) -> bytes | None:
        return self.remote.get(_path("reports", name, version))

    def put_report(self, name: str, version: str, content: bytes) -> None:
        """Stores a report in place of an earlier one."""
        self.remote.put(_path("reports", name, version), content)

    # Blobs

    def has(self, sha256: str, size: int) -> bool:
        """Returns whether a blob is there whole and no pruning waits to remove it."""
        found = self.remote.head(blob(sha256))
        return found is not None and found.size == size and self.remote.head(unused(sha256)) is None

    def put_blob(self, sha256: str, file: Path) -> None:
        """Uploads a blob. What a pruning noted of it is taken back before and after."""
        self.remote.delete(unused(sha256))
        self.remote.upload(blob(sha256), file)
        self.remote.delete(unused(sha256))

    def _versions(self, prefix: str) -> dict[Version, StoredObject]:
        found = ((_version(each.path), each) for each in self.remote.list(prefix))
        return {version: each for version, each in found if version is not None}


def blob(sha256: str) -> str:
    return f"blobs/{sha256}"


def unused(sha256: str) -> str:
    return f"unused/{sha256}"


def blobs_of(manifest: Manifest) -> dict[str, int]:
    """Returns the sha256 and sizes of a version's blobs, without `model.yaml`, whose size no manifest says."""
    return {file.sha256: file.size for file in manifest.files}


def _path(kind: str, name: str, version: str) -> str:
    return f"{kind}/{name}/{version}.json"


def _version(path: str) -> Version | None:
    """Returns the version that an object's path is of; None for objects of others."""
    parts = path.split("/")
    if len(parts) != 3 or not parts[2].endswith(".json"):
        return None
    try:
        reference = ModelReference(parts[1], parts[2].removesuffix(".json"))
    except InvalidReference:
        return None
    return reference.name, reference.version or ""


def _identity(url: str, content: bytes) -> str:
    try:
        document = json.loads(content)
        known = document["format"], str(document["id"])
    except (ValueError, TypeError, KeyError):
        raise Conflict(f"{url} has a {IDENTITY} that is not ours: choose another prefix or directory") from None
    if known[0] != FORMAT:
        raise Conflict(f"{url} has the format {known[0]} and this release reads {FORMAT}: use the release that made it")
    return known[1]
