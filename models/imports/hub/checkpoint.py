"""A hub checkpoint is a directory with the files of one commit that a version needs, whole or on their way.

It lies in `downloads`, or in the hub's own cache where that holds all that is needed; the cache is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from models.checkpoint.pooling import POOLING_CONFIG
from models.checkpoint.safetensors_file import INDEX
from models.errors import InvalidSource
from models.imports.hub import gguf_choice, selection
from models.imports.hub import listing as hub
from models.imports.hub.download import download, received
from models.imports.hub.downloads import PART, Refs, alone, place
from models.imports.hub.listing import HubFile, Listing
from models.imports.hub.refusals import refusal
from models.imports.hub.source import HubSource
from models.repository.disk import durable
from models.repository.disk.room import require_room

Watch = Callable[[int, int, str], None]
"""(bytes that are here, bytes of all files, the file on its way)"""


def unwatched(done: int, total: int, name: str) -> None:
    """Takes reports of a download and drops them."""


@dataclass(frozen=True, slots=True)
class HubCheckpoint:
    """The files of `source` at `commit`. `weights` are the listed weights' files while they are on their way, and
    empty where the directory is whole. Symbolic links in it lead into `links_within`."""

    source: HubSource
    commit: str
    directory: Path
    links_within: Path
    listing: Listing | None = None
    weights: tuple[HubFile, ...] = ()

    @property
    def sizes(self) -> list[int]:
        """Bytes of each of the weights' files."""
        if self.listing is None:
            return [path.stat().st_size for path in self.directory.glob(f"*{selection.SAFETENSORS}")]
        return [file.size for file in self.weights]

    @property
    def gguf(self) -> Path | None:
        """The first file of a GGUF model; None for another checkpoint."""
        names = [file.name for file in self.weights] or sorted(
            str(path.relative_to(self.directory)) for path in self.directory.rglob("*.*") if path.is_file()
        )
        if any(name.endswith(selection.SAFETENSORS) for name in names):
            return None
        return next((self.directory / name for name in gguf_choice.models(names)), None)

    @property
    def bytes_to_come(self) -> int:
        return sum(max(0, file.size - received(self.directory, file)) for file in self.weights)

    def fetch(self, watch: Watch = unwatched) -> HubCheckpoint:
        """Returns the whole checkpoint: fetches what is missing. Raises InvalidSource with the way out, before a byte
        where the disk has no room for it, and Conflict while another process does the same."""
        if self.listing is None:
            return self
        copied = 0 if self.gguf else sum(self.sizes)  # to the version, while the download is there
        require_room(self.directory, self.bytes_to_come + copied, str(self.source))
        with alone(self.directory):
            _fetch(self.listing, self.weights, self.directory, watch)
            whole = self.directory.with_name(self.directory.name.removesuffix(PART))
            self.directory.rename(whole)
        durable.sync(whole.parent)
        return HubCheckpoint(self.source, self.commit, whole, whole)


def begin(data_dir: Path, source: HubSource) -> HubCheckpoint:
    """Returns a checkpoint with all its small files; its weights may be still to fetch. Asks the hub, and where that
    fails takes what is on this machine. Raises InvalidSource with the way out, Conflict."""
    if source.is_commit and (whole := downloaded(data_dir, source, source.revision)):
        return whole
    try:
        listing = hub.read(source)
    except InvalidSource:
        commit = Refs(data_dir).commit(source)
        local = (downloaded(data_dir, source, commit) if commit else None) or cached(source, source.revision)
        if local is None:
            raise
        return local
    local = downloaded(data_dir, source, listing.commit) or cached(source, listing.commit, listing)
    return local or _begun(data_dir, listing)


def downloaded(data_dir: Path, source: HubSource, commit: str) -> HubCheckpoint | None:
    """Returns the whole download of a commit, if there is one."""
    directory = place(data_dir, source, commit)
    return HubCheckpoint(source, commit, directory, directory) if directory.is_dir() else None


def cached(source: HubSource, revision: str, listing: Listing | None = None) -> HubCheckpoint | None:
    """Returns the snapshot in the hub's own cache, if it holds all that is needed by `listing`, or, without one, by its
    own index."""
    found = try_to_load_from_cache(source.id, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    snapshot = Path(found).parent
    present = {path.name for path in snapshot.iterdir() if path.is_file()}
    present |= {name for name in (POOLING_CONFIG,) if (snapshot / name).is_file()}
    names = set(listing.files) if listing else present
    index = snapshot / INDEX
    if INDEX in names - present:
        return None
    try:
        weights = selection.weights(source, names, index.read_bytes() if INDEX in present else None)
    except InvalidSource:
        return None
    if selection.is_gguf(source, names):  # the cache may have others beside it
        return None
    if {*selection.texts(names), *weights} - present:
        return None
    return HubCheckpoint(source, snapshot.name, snapshot, snapshot.parent.parent)


def _begun(data_dir: Path, listing: Listing) -> HubCheckpoint:
    """Fetches the small files, and says which weights are to come."""
    source, names = listing.source, listing.files
    is_gguf = selection.is_gguf(source, names)
    if not is_gguf:
        selection.refuse_without_config(source, names)
    if is_gguf or INDEX not in names:
        selection.weights(source, names, None)  # refuses before anything is fetched
    directory = place(data_dir, source, listing.commit + PART)
    durable.make_directory(directory)
    with alone(directory):
        texts = [] if is_gguf else selection.texts(names)
        _fetch(listing, [names[name] for name in texts], directory, unwatched)
        index = (directory / INDEX).read_bytes() if INDEX in texts else None
    chosen = selection.weights(source, names, index)
    return HubCheckpoint(source, listing.commit, directory, directory, listing, tuple(names[name] for name in chosen))


def _fetch(listing: Listing, files: Sequence[HubFile], directory: Path, watch: Watch) -> None:
    count = _Count(sum(file.size for file in files), watch)
    try:
        for file in files:
            download(listing, file, directory, partial(count.add, file.name))
    except Exception as error:  # the client raises its own, httpx2's and the system's errors
        raise refusal(listing.source, error) from error


class _Count:
    """Adds up the bytes of several files."""

    def __init__(self, total: int, watch: Watch) -> None:
        self._arrived = 0
        self._total = total
        self._watch = watch

    def add(self, name: str, bytes: int) -> None:
        self._arrived += bytes
        self._watch(self._arrived, self._total, name)
