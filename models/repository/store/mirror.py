"""The mirror shows a store's versions in one data directory, as if they were published there.

A version of the store has its directory here from the next refresh on, with every file but its weights, which are
fetched when it is used. So lists, leases and BentoML's view need no store, and go on while it is away. The repository
calls in here inside its own locks.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from models.errors import Conflict, Corrupt, NotFound, RepositoryError
from models.manifest import File, Manifest, ModelReference
from models.repository.disk import bento_store, durable, leases, staging
from models.repository.disk.blobs import Blobs
from models.repository.disk.layout import Layout
from models.repository.disk.listing import matching
from models.repository.store.cache import Cache, weights_of
from models.repository.store.fetching import fetch
from models.repository.store.shared_store import Listing, SharedStore, Version, blob

MARK: Final = "store.json"
"""The file of a data directory that says which store it shows."""
_FETCH_SECONDS: Final = 3600.0
Locked = Callable[[str], AbstractContextManager[None]]


class Mirror:
    """One data directory's view of one store. Safe to use from many threads and processes."""

    def __init__(self, layout: Layout, store: SharedStore, cache_bytes: int, locked: Locked) -> None:
        """Raises Conflict where the directory shows another store. `locked` keeps other writers from a model."""
        self.store = store
        self.cache = Cache(layout, cache_bytes, self._is_stored)
        self._layout = layout
        self._locked = locked
        self._refreshing = threading.Lock()
        self._reports: dict[Version, str] = {}
        self.changed: set[str] = set()
        """Models whose versions a refresh changed, since the repository last looked."""
        self._belongs()

    def require_pushed(self) -> None:
        """Raises Conflict for versions of the data directory that the store does not have, with what to do."""
        missing = self.not_stored()
        if missing:
            raise Conflict(
                f"{', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''} of the data directory are not in "
                "the store: move them there with `dosirak store push`, or choose another DOSIRAK_DATA_DIR"
            )

    def not_stored(self) -> list[str]:
        """Returns the references of versions that are here alone, sorted."""
        listing = self.store.listing()
        alone = set(_versions_in(self._layout)) - listing.manifests - listing.deleted
        return [f"{name}:{version}" for name, version in sorted(alone)]

    def refresh(self) -> list[str]:
        """Shows what the store holds now: new versions, reports and deletions. Returns a sentence for each version
        that could not be shown. Raises StoreUnavailable."""
        with self._refreshing:
            listing, failed = self.store.listing(), list[str]()
            shown = set(_versions_in(self._layout))
            for version in sorted(shown & listing.deleted):
                self._hide(*version)
            self.changed |= {name for name, _ in (shown & listing.deleted) | (listing.versions - shown)}
            for version in sorted(listing.versions - shown):
                try:
                    self._show(*version)
                except (Corrupt, Conflict, NotFound) as error:
                    failed.append(str(error))
            self._refresh_reports(listing)
            return failed

    def files(self, manifest: Manifest) -> list[File]:
        """Returns the weights of a version that are not here."""
        directory = self._directory(manifest.name, manifest.version)
        return [file for file in weights_of(manifest) if not (directory / file.path).exists()]

    def fetch(self, manifest: Manifest, versions: Callable[[], Iterable[Manifest]]) -> None:
        """Brings the missing weights of a version, whose lease the caller holds, and notes its use. `versions` are all
        that may make room. Raises Corrupt naming a file whose content is not what was published, Conflict where there
        is no room, and StoreUnavailable."""
        directory = self._directory(manifest.name, manifest.version)
        self.cache.use(directory)
        if not self.files(manifest):
            return
        with durable.locked(self._layout.locks / f"{manifest.name}+fetch.lock", _FETCH_SECONDS):
            missing = self.files(manifest)
            self.cache.make_room(sum(file.size for file in missing), versions())
            with staging.stage(self._layout.temporary) as staged:
                for file in missing:
                    self._bring(manifest, file, staged)
                    (staged / file.path).rename(directory / file.path)
                durable.sync(directory)
            self.cache.use(directory)

    # Changes, which the repository makes here first

    def upload(self, staged: Path, files: Iterable[File]) -> None:
        """Uploads the files that the store does not have."""
        for file in files:
            self._upload(file.sha256, file.size, staged / file.path)

    def publish(self, manifest: Manifest, staged: Path) -> bool:
        """Publishes a version whose files were uploaded; False where its number is taken. Pruning relies on the look at
        the blobs right before, and on the second one, which brings back what a pruning removed in between."""
        self._upload_all(manifest, staged)
        if not self.store.publish(manifest):
            return False
        self._upload_all(manifest, staged)
        return True

    def put_report(self, manifest: Manifest, content: bytes) -> None:
        self.store.put_report(manifest.name, manifest.version, content)

    # Inside

    def _upload_all(self, manifest: Manifest, staged: Path) -> None:
        description = staged / bento_store.DESCRIPTION
        self._upload(manifest.description, description.stat().st_size, description)
        self.upload(staged, manifest.files)

    def _upload(self, sha256: str, size: int, path: Path) -> None:
        if not self.store.has(sha256, size):
            self.store.put_blob(sha256, path)

    def _bring(self, manifest: Manifest, file: File, staged: Path) -> None:
        """Places a file of a version in `staged`, as one with the shared file of its content, where that is good."""
        path = staged / file.path
        known = self._layout.blobs / file.sha256
        if known.exists() and known.stat().st_size == file.size and staging.sha256_of(known) == file.sha256:
            with suppress(OSError):
                os.link(known, path)
                return
        try:
            fetch(self.store.remote, file.sha256, file.size, path)
        except RepositoryError as error:
            raise type(error)(f"{manifest.reference}: {file.path}: {error}") from None
        Blobs(self._layout.blobs).share(path, file)

    def _show(self, name: str, version: str) -> None:
        manifest = self.store.manifest(name, version)
        if manifest is None:
            return
        with staging.stage(self._layout.temporary) as staged:
            for file in manifest.files:
                if file not in weights_of(manifest):
                    self._bring(manifest, file, staged)
            self._bring_description(manifest, staged)
            staging.write_sealed(staged / staging.MANIFEST, manifest.to_json().encode())
            durable.sync(staged)
            durable.make_directory(self._layout.models / name)
            with self._locked(name):
                if not self._directory(name, version).exists():
                    staged.rename(self._directory(name, version))
                    durable.sync(self._layout.models / name)

    def _bring_description(self, manifest: Manifest, staged: Path) -> None:
        found = self.store.remote.head(blob(manifest.description))
        file = File(bento_store.DESCRIPTION, found.size if found else 0, manifest.description)
        self._bring(manifest, file, staged)

    def _hide(self, name: str, version: str) -> None:
        """Removes the directory of a version that another instance deleted. One in use stays until a later refresh."""
        gone, directory = staging.departure(self._layout.temporary), self._directory(name, version)
        with suppress(Conflict, FileNotFoundError), self._locked(name), leases.unused(directory):
            directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        if not directory.exists():
            self._layout.report(name, version).unlink(missing_ok=True)
            shutil.rmtree(self._layout.profiles_of(name, version), ignore_errors=True)

    def _refresh_reports(self, listing: Listing) -> None:
        """Brings reports that were written since the last look."""
        for version in listing.reports.keys() & listing.versions:
            if self._reports.get(version) == listing.reports[version]:
                continue
            content = self.store.report(*version)
            path = self._layout.report(*version)
            if content is not None and (not path.exists() or path.read_bytes() != content):
                durable.make_directory(path.parent)
                with self._locked(version[0]):
                    durable.replace(path, content)
            self._reports[version] = listing.reports[version]

    def _is_stored(self, manifest: Manifest) -> bool:
        """Returns whether the store can give a version's weights again."""
        store = self.store
        return store.manifest(manifest.name, manifest.version) == manifest and all(
            store.has(file.sha256, file.size) for file in weights_of(manifest)
        )

    def _belongs(self) -> None:
        path, mark = self._layout.data_dir / MARK, {"store": self.store.identity}
        try:
            known = json.loads(path.read_bytes())
        except FileNotFoundError:
            self._require_same()
            durable.replace(path, json.dumps(mark).encode() + b"\n")
            return
        except ValueError:
            raise Conflict(f"{MARK} of the data directory is damaged: remove it") from None
        if known != mark:
            raise Conflict(
                "The data directory shows the versions of another store: give back its DOSIRAK_STORE_URL, or choose "
                "another DOSIRAK_DATA_DIR"
            )

    def _require_same(self) -> None:
        """Raises Conflict for a version that the store has with other content."""
        both = sorted(set(_versions_in(self._layout)) & self.store.listing().versions)
        for (name, version), stored in zip(both, self.store.manifests(both), strict=True):
            content = (self._directory(name, version) / staging.MANIFEST).read_bytes()
            if stored is not None and stored.to_json().encode() != content:
                raise Conflict(
                    f"{name}:{version} of the data directory is not the store's: choose another DOSIRAK_DATA_DIR, or "
                    "publish it under another name and delete it here"
                )

    def _directory(self, name: str, version: str) -> Path:
        return self._layout.version(ModelReference(name, version))


def _versions_in(layout: Layout) -> list[Version]:
    """Returns the versions that have a directory with a manifest."""
    manifests = matching(layout.models, f"*/*/{staging.MANIFEST}")
    return [(path.parent.parent.name, path.parent.name) for path in manifests]
