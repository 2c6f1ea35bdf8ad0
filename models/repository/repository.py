"""The repository keeps versions, aliases and their history on disk. Changes are atomic. It knows no weights or HTTP.

`data_dir` is a `BENTOML_HOME`, so `bentoml models list|get` shows the same versions:

    data_dir/models/<name>/<version>/   manifest.json, model.yaml, config.json, tokenizer.json, *.safetensors, ...
    data_dir/models/<name>/latest       the newest version, for BentoML; this package does not rely on it
    data_dir/journal/<name>.jsonl       aliases and deletions (`repository.disk.journal`), unless shared
                                        (`repository.disk.records`)
    data_dir/published/<name>           when each version was made, for lists (`repository.disk.publications`)
    data_dir/reports/<name>/            <version>.json, its report (`report`)
    data_dir/profiles/<name>/<version>/   profiles of its engine, a directory each (`service.observability.profiles`)
    data_dir/rollouts/<name>/           <alias>.json, versions on trial (`rollouts`)
    data_dir/blobs/<sha256>             files that several versions share (`repository.disk.blobs`)
    data_dir/engine/<digest>.*          engines' records of a version; made again if missing
    data_dir/downloads/, hub/           checkpoints on their way from a hub, and what its branches were
                                        (`models.imports.hub`)
    data_dir/tmp/stage-*, gone-*        versions being made and being removed; not visible, swept after a crash
    data_dir/locks/<name>.lock          one writer per model, across processes
    data_dir/store.json                 which store the versions are of, if they are shared (`repository.store.mirror`)

A version appears and disappears by one rename. A directory that is no whole version is ignored by every listing.
BentoML's own prefix matching is never used: `name:1` is not `name:10`.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from models.errors import Conflict, Corrupt, InvalidReference, NotFound, RepositoryError, Stale, Unreachable
from models.manifest import DEFAULT_ALIAS, Facts, Manifest, ModelReference
from models.repository import gate, numbering, rollout_record
from models.repository.disk import bento_store, durable, leases, staging, verifying
from models.repository.disk.blobs import Blobs
from models.repository.disk.journal import Action, Entry, History, timestamp, undo_stack
from models.repository.disk.layout import Layout
from models.repository.disk.publications import NO_WHOLE_VERSION, Moment, Publications
from models.repository.disk.records import FileRecords, Records
from models.repository.disk.remembered import Remembered
from models.repository.judging import judged
from models.repository.layers import stored_layers
from models.repository.lineage import parent_of
from models.repository.report import Report, ReportState
from models.repository.store.mirror import Mirror
from models.repository.store.shared_store import SharedStore

PARSERS: Final = "parsers"
"""The kind of documents that a version's parsers are."""


class Repository:
    """Model versions under `data_dir`, which is created when missing. Safe to use from many threads and processes."""

    def __init__(
        self,
        data_dir: Path,
        lock_timeout: float = 30.0,
        records: Records | None = None,
        store: SharedStore | None = None,
        cache_bytes: int = 0,
    ) -> None:
        """A change waits at most `lock_timeout` seconds for another one of the same model, then raises Conflict.
        `records` are those that instances share; None keeps them in the data directory. With a `store`, versions are
        those of the store, as of the last `refresh`, and `data_dir` keeps at most `cache_bytes` of weights besides
        those in use; 0 sets no limit."""
        self.layout = Layout(data_dir)
        self.records: Records = records or FileRecords(self.layout)
        self._lock_timeout = lock_timeout
        self._manifests = Remembered(Manifest.from_json)
        self._publications = Publications(self.layout)
        self.layout.make()
        self.mirror = None if store is None else Mirror(self.layout, store, cache_bytes, self.locked)

    # Reading

    def models(self) -> list[str]:
        """Names of all models with at least one whole version, sorted."""
        names = (path.name for path in self.layout.models.iterdir() if path.is_dir())
        return sorted(filter(self._has_versions, names))

    def versions(self, name: str) -> list[Manifest]:
        """All whole versions of `name`, newest last; empty when there is none."""
        return list(self.newest_first(name))[::-1]

    def newest_first(self, name: str, before: Moment | None = None) -> Iterator[Manifest]:
        """Yields the whole versions of `name`, newest first; with `before`, those that were made before that moment. A
        manifest is read when it is its turn, so a page of a long list costs what the page holds."""
        name = ModelReference(name).name
        for moment in self._publications.newest_first(name, lambda version: self.get(name, version).created_at):
            if before is None or moment < before:
                with suppress(*NO_WHOLE_VERSION):  # its manifest was damaged, or it is gone since
                    yield self.get(name, moment[1])

    def newest(self, name: str) -> Manifest | None:
        """The newest whole version of `name`; None when there is none."""
        return next(self.newest_first(name), None)

    def get(self, name: str, version: str) -> Manifest:
        """Exactly this version. Raises NotFound, or Corrupt when its directory holds no valid manifest."""
        if self.records.shared and version in self._history(name).deleted:  # by another instance; the files are here
            raise NotFound(f"There is no model version {name}:{version}: it was deleted")
        return self._manifest(ModelReference(name, version), self._manifests.of)

    def _manifest(self, reference: ModelReference, read: Callable[[Path], Manifest]) -> Manifest:
        try:
            manifest = read(self.layout.version(reference) / staging.MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"There is no model version {reference}; `versions` lists what there is") from None
        except Corrupt as error:
            raise Corrupt(f"{reference}: {error}") from None
        if manifest.reference != str(reference):
            raise Corrupt(f"{reference}: manifest.json is of {manifest.reference}")
        return manifest

    def resolve(self, reference: str | ModelReference) -> Manifest:
        """The version meant now: an exact one, an alias, or for a bare name its `production`, else its newest.

        Raises InvalidReference, NotFound, or Corrupt.
        """
        if isinstance(reference, str):
            reference = ModelReference.parse(reference)
        if reference.version is not None:
            return self.get(reference.name, reference.version)
        known = self.aliases(reference.name)
        version = known.get(reference.alias or DEFAULT_ALIAS)
        if version is not None:
            return self._pointed_to(reference.name, reference.alias or DEFAULT_ALIAS, version)
        if reference.alias is not None:
            raise NotFound(
                f"{reference.name} has no alias {reference.alias!r}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        newest = self.newest(reference.name)
        if newest is None:
            raise self._no_model(reference.name)
        return newest

    def require_known(self, name: str) -> None:
        """Raises NotFound for a model that has no version and no history."""
        if not self._history(name).entries and self.newest(name) is None:
            raise self._no_model(name)

    def _no_model(self, name: str) -> NotFound:
        return NotFound(f"There is no model {name}; there are: {', '.join(self.models()) or 'none'}")

    def _pointed_to(self, name: str, alias: str, version: str) -> Manifest:
        """The version of an alias. Of shared records it may be on its way to this instance, so it is not NotFound."""
        try:
            return self.get(name, version)
        except NotFound:
            if not self.records.shared:
                raise
            raise Unreachable(f"{name}@{alias} is {version}, whose files this instance does not have") from None

    def path(self, manifest: Manifest) -> Path:
        """The read-only directory of a version, holding `manifest.files`."""
        return self.layout.version(ModelReference(manifest.name, manifest.version))

    def findings_path(self, manifest: Manifest) -> Path:
        """Returns the path for an engine's findings of a version's content without its adapter. The file may be removed
        at any time."""
        return self.layout.engine / f"{manifest.base_digest}.record"

    def report(self, manifest: Manifest) -> Report | None:
        """Returns the report of a version, if it has one. Raises Corrupt for a damaged report."""
        try:
            return Report.from_json(self.layout.report(manifest.name, manifest.version).read_bytes(), manifest)
        except FileNotFoundError:
            return None

    def is_measured(self, manifest: Manifest) -> bool:
        """Returns whether a version has a report, readable or damaged. A check of seconds is none yet."""
        try:
            report = self.report(manifest)
        except Corrupt:
            return True
        return report is not None and report.effort != "check"

    def measuring(self, manifest: Manifest) -> AbstractContextManager[None]:
        """Marks a version as being measured, for all processes, while inside. Raises Conflict where it is already."""
        return leases.marked(self.path(manifest) / staging.MANIFEST)

    def report_state(self, manifest: Manifest, report: Report | None) -> ReportState:
        """Returns how far the version's report is; `report` is the present one. A version that is measured again is
        `measuring`."""
        if self.is_being_measured(manifest):
            return "measuring"
        return "measured" if report else "not_measured"

    def is_being_measured(self, manifest: Manifest) -> bool:
        return leases.is_marked(self.path(manifest) / staging.MANIFEST)

    def lease(self, manifest: Manifest) -> leases.Lease:
        """Keeps a version from being deleted, by any process, until it is released. Raises NotFound, and Unreachable
        where the records are shared."""
        lease = leases.Lease(self.path(manifest))
        try:
            lease.ended = self.records.lease(manifest.name, manifest.version)
        except BaseException:
            lease.release()
            raise
        return lease

    def foreign(self, reference: ModelReference) -> Path:
        """Returns the directory of a model that BentoML itself stored here. Raises NotFound."""
        directory = self.layout.version(reference)
        if reference.version is None or not (directory / bento_store.DESCRIPTION).is_file():
            raise NotFound(f"BentoML has no model {reference} in this store")
        if (directory / staging.MANIFEST).exists():
            raise NotFound(f"{reference} is a version of ours already; there is nothing to import")
        return directory

    def verify(self, manifest: Manifest) -> None:
        """Read every byte again. Raises Corrupt naming a file that is changed, missing or not ours."""
        if not self.path(manifest).is_dir():
            raise NotFound(f"There is no model version {manifest.reference}")
        self.fetch(manifest)
        self.check(manifest)

    def check(self, manifest: Manifest) -> None:
        """Does the same for files that are here; what is in the store alone counts as missing."""
        reference = ModelReference(manifest.name, manifest.version)
        if self._manifest(reference, lambda path: Manifest.from_json(path.read_bytes())) != manifest:
            raise Corrupt(f"{manifest.reference}: {staging.MANIFEST} is not what was published")
        verifying.verify(self.path(manifest), manifest)

    # The store, where there is one

    def refresh(self) -> list[str]:
        """Shows what other instances published, measured and deleted. Returns a sentence for each version that cannot
        be shown. Raises StoreUnavailable."""
        if self.mirror is None:
            return []
        failed = self.mirror.refresh()
        while self.mirror.changed:
            name = self.mirror.changed.pop()
            with self.locked(name):
                self.point_latest(name)
        return failed

    def fetch(self, manifest: Manifest) -> None:
        """Brings a version's weights into the data directory, if they are in the store alone. Keep a lease meanwhile
        and as long as they are used: without one they may go again. Raises NotFound, Corrupt, Conflict where the cache
        has no room, and StoreUnavailable."""
        if self.mirror is not None:
            with leases.Lease(self.path(manifest)):
                self.mirror.fetch(manifest, self._all)

    def _all(self) -> Iterator[Manifest]:
        return (manifest for name in self.models() for manifest in self.newest_first(name))

    # Publishing

    def stage(self) -> AbstractContextManager[Path]:
        """An empty directory on the same file system to fill and `publish`; removed at the end when it still exists."""
        return staging.stage(self.layout.temporary)

    def publish(
        self, staged: Path, facts: Facts, name: str, version: str | None = None, known: Mapping[str, str] | None = None
    ) -> Manifest:
        """Make the staged directory a version, in one rename; `version` None takes the next whole number.

        `known` gives the sha256 of files hashed while they were written, by name; the others are hashed here. Files
        become read-only. Raises Conflict when the version exists or once existed, or a staged entry is no plain file,
        and InvalidSource for a safetensors file without a sound header.
        """
        reference = ModelReference(name, version)
        files = tuple(staging.seal(path, (known or {}).get(path.name)) for path in sorted(staged.iterdir()))
        if not files:
            raise Conflict("The staged directory is empty; there is nothing to publish")
        layers = stored_layers(staged)
        for file in files:
            Blobs(self.layout.blobs).share(staged / file.path, file)
        if self.mirror is not None:
            self.mirror.upload(staged, files)
        durable.make_directory(self.layout.models / name)
        with self.locked(name):
            manifest = self._numbered(staged, reference, partial(Manifest.of, facts, files=files, layers=layers))
            self._show(staged, manifest)
        return manifest

    def _show(self, staged: Path, manifest: Manifest) -> None:
        """Gives a version its name, with all that belongs to it or, where anything fails, not at all. The lock is
        held."""
        staged.rename(self.path(manifest))
        try:
            durable.sync(self.layout.models / manifest.name)
            self._inherit(manifest)
            bento_store.point_latest(self.layout.models / manifest.name, manifest.version)
        except OSError:
            self.path(manifest).rename(staged)
            with suppress(OSError):
                self.records.put_document(PARSERS, f"{manifest.name}/{manifest.version}", None)
                self.point_latest(manifest.name)
            raise
        self._publications.add(manifest.name, {manifest.version: manifest.created_at})

    def _inherit(self, manifest: Manifest) -> None:
        """Copies the parsers of the version that this one was made of, whose template it has. The lock is held."""
        with suppress(RepositoryError):  # a parent that is gone leaves nothing
            if parent := parent_of(manifest, self.resolve):
                content = self.records.document(PARSERS, f"{parent.name}/{parent.version}")
                self.records.put_document(PARSERS, f"{manifest.name}/{manifest.version}", content)

    def _numbered(self, staged: Path, target: ModelReference, make: Callable[..., Manifest]) -> Manifest:
        """Writes the manifest of the next free number, which the store, if there is one, then has. Raises Conflict."""
        while True:
            reference = ModelReference(target.name, self._free_version(target))
            manifest = make(reference, self._next_moment(target.name))
            description = bento_store.description(manifest)
            manifest = replace(manifest, description=hashlib.sha256(description).hexdigest())
            staging.write_sealed(staged / staging.MANIFEST, manifest.to_json().encode())
            staging.write_sealed(staged / bento_store.DESCRIPTION, description)
            durable.sync(staged)
            if self.mirror is None or self.mirror.publish(manifest, staged):
                return manifest

    def delete(self, name: str, version: str, reason: str = "", actor: str = "") -> None:
        """Remove a version, its report and its profiles; its number is not used again. Raises NotFound, or Conflict
        while an alias points to it, a rollout has it on trial, or a process has a lease on it."""
        reference = ModelReference(name, version)
        gone = staging.departure(self.layout.temporary)
        with self.locked(name):
            if not self.layout.version(reference).is_dir():
                raise NotFound(f"There is no model version {reference}")
            holders = sorted(alias for alias, held in self.aliases(name).items() if held == version)
            if holders:
                raise Conflict(f"{reference} is {', '.join(holders)}; promote another version first")
            self._refuse_candidate(reference)
            with leases.unused(self.layout.version(reference)):
                self.records.refuse_leased(name, version)
                if self.mirror is not None:
                    self.mirror.store.delete(self.get(name, version), reason, actor)
                self._record(name, "delete", None, version, None, reason, actor)
                self.layout.version(reference).rename(gone)
            with suppress(OSError):  # it is deleted: what is left of it goes with the next sweep
                durable.sync(self.layout.models / name)
                shutil.rmtree(gone, ignore_errors=True)  # first: it makes room on a full disk
                self.layout.report(name, version).unlink(missing_ok=True)
                shutil.rmtree(self.layout.profiles_of(name, version), ignore_errors=True)
                self.point_latest(name)

    def put_report(self, manifest: Manifest, report: Report) -> None:
        """Store the report of a version in place of an earlier one. Raises NotFound, Conflict."""
        if report.digest != manifest.digest:
            raise Conflict(f"The report is not of {manifest.reference}")
        with self.locked(manifest.name):
            self.get(manifest.name, manifest.version)
            if self.mirror is not None:
                self.mirror.put_report(manifest, report.to_json())
            path = self.layout.report(manifest.name, manifest.version)
            durable.make_directory(path.parent)
            durable.replace(path, report.to_json())

    # Aliases

    def aliases(self, name: str) -> dict[str, str]:
        """Alias to version; empty when there is none."""
        return dict(self._history(name).aliases)

    def history(self, name: str, alias: str, at: datetime | None = None) -> list[Entry]:
        """Changes of an alias, oldest first; with `at` (zone-aware) the one change in force then, or none."""
        ModelReference(name, alias=alias)
        entries = [entry for entry in self._history(name).entries if entry.alias == alias]
        return entries if at is None else [entry for entry in entries if entry.time <= timestamp(at)][-1:]

    def moves(self, name: str) -> Counter[str]:
        """The number of changes of all aliases, by action."""
        return Counter(entry.action for entry in self._history(name).entries if entry.alias is not None)

    def promote(
        self,
        name: str,
        alias: str,
        version: str,
        reason: str,
        actor: str = "",
        expected: str | None = None,
        limits: gate.Limits | None = None,
        override: bool = False,
        require: Callable[[], object] | None = None,
    ) -> Entry:
        """Point `alias` to `version`, which must exist and be whole; a no-op when it does already. `require` is called
        where nothing can change any more, and raises what stands in the way.

        `expected` is compare-and-set: the version that the caller believes the alias has, or "" for "it has none".
        With `limits` the version's report must keep them; `override` moves the alias all the same, which takes a
        reason and is kept in the history. Raises NotFound, Corrupt, Conflict for the limits, Stale for `expected`.
        """
        ModelReference(name, alias=alias)
        with self.locked(name):
            manifest = self.get(name, version)
            previous = self.compare(name, alias, expected)
            if require is not None:
                require()
            if previous == version:
                return self.history(name, alias)[-1]
            broken = self.broken_limits(manifest, alias, limits) if limits else ()
            if broken and not (override and reason.strip()):
                raise Conflict(
                    f"{manifest.reference} breaks the gate's limits: {'; '.join(broken)}. Promote another version, or "
                    "override with a reason"
                )
            return self._record(name, "promote", alias, version, previous, reason, actor, broken)

    def broken_limits(self, manifest: Manifest, alias: str, limits: gate.Limits) -> tuple[str, ...]:
        """Returns the limits that keep `alias` from moving to a version: `gate.broken` against the version that
        the alias has, or had before it was removed, else against production's. A damaged incumbent never prevents its
        replacement. Raises Corrupt for a damaged report of the version."""
        return gate.broken(*judged(self, manifest, alias, limits))

    def gate_checks(self, manifest: Manifest, alias: str, limits: gate.Limits) -> tuple[gate.Check, ...]:
        """Returns every figure of a version's report beside its limit, as `broken_limits` judges them."""
        return gate.checks(*judged(self, manifest, alias, limits))

    def rollback(
        self,
        name: str,
        alias: str,
        reason: str,
        actor: str = "",
        expected: str | None = None,
        limits: gate.Limits | None = None,
    ) -> Entry:
        """Undo the last promotion (or removal) of `alias`, then the one before; deleted versions are passed over.

        No limit prevents a rollback: the history keeps those of `limits` that the version breaks as overridden. Raises
        NotFound for an unknown model, Conflict when there is nothing to go back to, and Stale as `promote` does.
        """
        ModelReference(name, alias=alias)
        with self.locked(name):
            previous = self.compare(name, alias, expected)
            whole = {each.version: each for each in self.versions(name) if each.version != previous}
            candidates = [version for version in undo_stack(self._history(name).entries, alias) if version in whole]
            if not candidates:
                self.require_known(name)
                raise Conflict(f"{name}@{alias} has no earlier version to roll back to; promote one instead")
            broken = self._overridden(whole[candidates[-1]], alias, limits) if limits else ()
            return self._record(name, "rollback", alias, candidates[-1], previous, reason, actor, broken)

    def remove_alias(self, name: str, alias: str, reason: str, actor: str = "", expected: str | None = None) -> Entry:
        """Take the alias away. Raises NotFound when there is none, and Stale as `promote` does."""
        ModelReference(name, alias=alias)
        with self.locked(name):
            previous = self.compare(name, alias, expected)
            if previous is None:
                raise NotFound(f"{name} has no alias {alias!r}")
            return self._record(name, "remove", alias, None, previous, reason, actor)

    # Inside

    def locked(self, name: str) -> AbstractContextManager[None]:
        """One writer of a model at a time, across processes. Raises Conflict when another keeps it too long."""
        return self.records.locked(ModelReference(name).name, self._lock_timeout)

    def _history(self, name: str) -> History:
        try:
            return self.records.history(ModelReference(name).name)
        except Corrupt as error:
            raise Corrupt(f"{name}: {error}") from None

    def _refuse_candidate(self, reference: ModelReference) -> None:
        for rollout in rollout_record.all_running(self.records):
            if rollout.reference == str(reference):
                raise Conflict(
                    f"{reference} is on trial under {rollout.name}@{rollout.alias}; abort that rollout first, as by "
                    f"dosirak model rollout {rollout.name} --alias {rollout.alias} --abort"
                )

    def _overridden(self, manifest: Manifest, alias: str, limits: gate.Limits) -> tuple[str, ...]:
        """Returns the limits that a move breaks which nothing prevents, not even a damaged report."""
        try:
            return self.broken_limits(manifest, alias, limits)
        except Corrupt as error:
            return (str(error),)

    def point_latest(self, name: str) -> None:
        """Makes the newest version BentoML's `latest`. The caller holds the model's lock."""
        newest = self.newest(name)
        bento_store.point_latest(self.layout.models / name, newest.version if newest else None)

    def _has_versions(self, name: str) -> bool:
        try:
            return self.newest(name) is not None
        except InvalidReference:
            return False  # another tool's directory

    def taken(self, name: str) -> set[str]:
        """Returns the versions of a model that are or were there, here and in the store. Raises Corrupt, Unreachable
        and StoreUnavailable."""
        directory = self.layout.models / name
        here = {path.name for path in directory.iterdir()} if directory.is_dir() else set[str]()
        in_store = self.mirror.store.numbers(name) if self.mirror is not None else set[str]()
        return here | self._history(name).deleted | in_store

    def _free_version(self, reference: ModelReference) -> str:
        """The version of `reference` if it is free, else Conflict; the next whole number where it has none."""
        used = self.taken(reference.name)
        numbering.require_free(reference, used)
        return reference.version or numbering.next_number(used)

    def _next_moment(self, name: str) -> str:
        """Now, but later than every version of `name`, so that a clock set back does not reorder them."""
        newest, now = self.newest(name), datetime.now(UTC)
        if newest is not None and newest.created_at >= timestamp(now):
            now = datetime.fromisoformat(newest.created_at) + timedelta(microseconds=1)
        return timestamp(now)

    def compare(self, name: str, alias: str, expected: str | None) -> str | None:
        """Returns the version that the alias points to. Raises Stale where that is not `expected`; None expects
        nothing. The caller of a change holds the model's lock."""
        previous = self.aliases(name).get(alias)
        if expected is not None and expected != (previous or ""):
            raise Stale(
                f"{name}@{alias} is {previous or 'not set'}, not {expected or 'unset'}; read it again and retry"
            )
        return previous

    def _record(
        self,
        name: str,
        action: Action,
        alias: str | None,
        version: str | None,
        previous: str | None,
        reason: str,
        actor: str,
        overridden: tuple[str, ...] = (),
    ) -> Entry:
        entry = Entry(action, alias, version, previous, reason, actor, timestamp(datetime.now(UTC)), overridden)
        self.records.append(name, entry)
        return entry
