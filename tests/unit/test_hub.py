"""These tests show that what a hub lists arrives whole, only what is needed of it, and that a download which was cut
off goes on."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.errors import Conflict, InvalidSource
from models.imports.hub import checkpoint as checkpoints
from models.imports.hub import download as downloading
from models.imports.hub import downloads
from models.imports.hub.checkpoint import begin
from models.imports.hub.downloads import Refs
from models.imports.hub.listing import commit_of
from models.imports.hub.source import HubSource
from models.imports.upkeep import collect
from models.repository.repository import Repository
from tests.checkpoints import save_llama
from tests.fake_hub import PIECE, FakeHub, reached

TINY = HubSource("org/Tiny-Chat")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with weights of a megabyte, and what is not needed of it."""
    directory = save_llama(tmp_path_factory.mktemp("hub") / "llama", width=256)
    for name in ("pytorch_model.bin", "modeling_tiny.py", "model.onnx", "vocab.json", "consolidated.safetensors"):
        (directory / name).write_bytes(b"not wanted")
    return directory


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(downloading, "_PAUSE_SECONDS", 0.0)
    with FakeHub() as hub:
        reached(hub, tmp_path / "cache", monkeypatch)
        yield hub


def refused(data: Path, source: HubSource, named: str) -> None:
    with pytest.raises(InvalidSource, match=named):
        begin(data, source).fetch()


def test_only_what_is_needed_arrives(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    commit = hub.push(TINY.id, llama)
    seen: list[tuple[int, int, str]] = []
    begun = begin(tmp_path, TINY)
    size = (llama / "model.safetensors").stat().st_size
    assert (begun.commit, begun.sizes, begun.bytes_to_come) == (commit, [size], size)
    whole = begun.fetch(lambda *step: seen.append(step))
    there = {path.name for path in whole.directory.iterdir()}
    assert there == {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    for name in there:
        assert (whole.directory / name).read_bytes() == (llama / name).read_bytes()
    assert seen[-1] == (size, size, "model.safetensors") and seen == sorted(seen)


def test_shards_are_those_of_the_index(hub: FakeHub, tmp_path: Path) -> None:
    source = save_llama(tmp_path / "sharded", shards="20KB")
    (source / "model.safetensors").write_bytes(b"all in one, besides")
    hub.push(TINY.id, source)
    whole = begin(tmp_path / "data", TINY).fetch()
    shards = {path.name for path in whole.directory.glob("*.safetensors")}
    assert len(shards) > 1 and "model.safetensors" not in shards


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_where_it_was_cut_off(
    hub: FakeHub, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    hub.push(TINY.id, llama)
    hub.break_after = 8 * PIECE
    monkeypatch.setattr(downloading, "_TRIES", 1)
    refused(tmp_path, TINY, "cannot be reached")
    part = next(tmp_path.glob("downloads/*.part/model.safetensors.part"))
    arrived = part.stat().st_size
    assert 0 < arrived <= 8 * PIECE
    hub.break_after, hub.ranges = None, ranges
    hub.requests.clear()
    begun = begin(tmp_path, TINY)
    size = begun.sizes[0]
    assert begun.bytes_to_come == size - arrived
    seen: list[int] = []
    whole = begun.fetch(lambda done, total, name: seen.append(done))
    assert (whole.directory / "model.safetensors").read_bytes() == (llama / "model.safetensors").read_bytes()
    assert [(each.first, each.sent) for each in hub.weights_sent()] == (
        [(arrived, size - arrived)] if ranges else [(0, size)]
    )
    assert seen[0] == arrived and seen[-1] == size
    assert not any(each.path.endswith("tokenizer.json") for each in hub.requests)


def test_a_connection_that_breaks_is_made_again(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    """Each connection brings some bytes, so there is no limit to how many are made."""
    hub.push(TINY.id, llama)
    hub.break_after = 4 * PIECE
    whole = begin(tmp_path, TINY).fetch()
    assert (whole.directory / "model.safetensors").read_bytes() == (llama / "model.safetensors").read_bytes()
    assert len(hub.weights_sent()) > 2


def test_bytes_that_are_not_as_listed_are_thrown_away(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    hub.push(TINY.id, llama)
    hub.damaged = True
    refused(tmp_path, TINY, "did not arrive as the hub lists it")
    assert not list(tmp_path.glob("downloads/*/model.safetensors*"))
    hub.damaged = False
    assert begin(tmp_path, TINY).fetch().sizes


def test_a_whole_download_asks_for_nothing(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    commit = hub.push(TINY.id, llama)
    whole = begin(tmp_path, TINY).fetch()
    hub.requests.clear()
    assert begin(tmp_path, HubSource(TINY.id, commit)) == checkpoints.HubCheckpoint(
        HubSource(TINY.id, commit), commit, whole.directory, whole.directory
    )
    assert hub.requests == []


def test_two_processes_do_not_write_one_file(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    hub.push(TINY.id, llama)
    begun = begin(tmp_path, TINY)
    with downloads.alone(begun.directory), pytest.raises(Conflict, match="wait for it"):
        begun.fetch()
    assert begun.fetch().sizes


def test_the_hubs_own_cache_is_used(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    """As huggingface_hub writes it. Weights that are not there are fetched to where ours lie."""
    from huggingface_hub import snapshot_download

    commit = hub.push(TINY.id, llama)
    snapshot = Path(snapshot_download(TINY.id, allow_patterns=["*.json"]))
    assert begin(tmp_path, TINY).directory != snapshot
    snapshot_download(TINY.id, allow_patterns=["model.safetensors"])
    hub.requests.clear()
    found = begin(tmp_path, TINY)
    assert (found.directory, found.commit, found.bytes_to_come) == (snapshot, commit, 0)
    hub.status = 503
    assert begin(tmp_path, TINY).fetch() == begin(tmp_path, TINY) == found
    assert hub.weights_sent() == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (HubSource("org/nothing"), "no repository org/nothing .*HF_TOKEN"),
        (HubSource("org/Tiny-Chat", "v9"), "no revision 'v9'"),
        (HubSource("org/pickled"), "only as pytorch_model.bin, which can run code"),
        (HubSource("org/quantized"), "only as model.onnx, which is not served"),
        (HubSource("org/empty"), "no config.json"),
        (HubSource("org/gated"), "is gated: accept its terms at .*/org/gated, then set HF_TOKEN"),
    ],
    ids=str,
)
def test_refusals_before_any_weight(hub: FakeHub, llama: Path, tmp_path: Path, source: HubSource, named: str) -> None:
    weights = ("model.safetensors", "consolidated.safetensors")
    hub.push(TINY.id, llama)
    hub.push("org/pickled", llama, leave_out=weights)
    hub.push("org/quantized", llama, leave_out=(*weights, "pytorch_model.bin"))
    hub.push("org/empty", llama, leave_out=("config.json",))
    hub.push("org/gated", llama)
    hub.repos["org/gated"].gated = True
    refused(tmp_path, source, named)
    assert hub.weights_sent() == []


def test_a_token_opens_a_gated_repository(
    hub: FakeHub, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(TINY.id, llama)
    hub.repos[TINY.id].gated, hub.token = True, "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert begin(tmp_path, TINY).fetch().sizes


@pytest.mark.parametrize(("status", "named"), [(403, "HF_TOKEN"), (429, "too many requests"), (503, "start again")])
def test_a_hub_that_refuses(hub: FakeHub, tmp_path: Path, status: int, named: str) -> None:
    hub.status = status
    refused(tmp_path, TINY, named)


def test_a_hub_out_of_reach(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    refused(tmp_path, TINY, "http://127.0.0.1:9 cannot be reached .*give the directory")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(tmp_path, TINY, "HF_HUB_OFFLINE is set")


def test_a_disk_that_fills_up(hub: FakeHub, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(TINY.id, llama)
    begun = begin(tmp_path, TINY)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloading, "_append", full)
    with pytest.raises(InvalidSource, match=r"disk is full .* what has arrived is kept"):
        begun.fetch()


def test_a_disk_without_room_is_told_before_a_byte(
    hub: FakeHub, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for the download and for its copy in the version; what has arrived before is not counted again."""
    hub.push(TINY.id, llama)
    needed = 2 * (llama / "model.safetensors").stat().st_size
    free = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: free)
    refused(
        tmp_path, TINY, r"org/Tiny-Chat needs .* MB more on the data directory's disk .*: free some, or set DOSIRAK"
    )
    assert not hub.weights_sent()
    free.free = needed
    assert begin(tmp_path, TINY).fetch().listing is None


def test_refs_are_what_was_fetched(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    commit = hub.push(TINY.id, llama)
    refs = Refs(tmp_path)
    assert refs.commit(TINY) is None
    refs.put(TINY, commit)
    refs.put(HubSource(TINY.id, "dev"), "d" * 40)
    assert (refs.commit(TINY), refs.commit(HubSource(TINY.id, "dev"))) == (commit, "d" * 40)
    assert refs.commit(HubSource(TINY.id, commit)) == commit_of(TINY) == commit
    next(tmp_path.glob("hub/*.json")).write_text("damaged")
    assert refs.commit(TINY) is None


def test_collecting_removes_what_was_not_finished(hub: FakeHub, llama: Path, tmp_path: Path) -> None:
    hub.push(TINY.id, llama)
    begun = begin(tmp_path, TINY)
    with downloads.alone(begun.directory):
        assert collect(Repository(tmp_path)).bytes == 0
    assert collect(Repository(tmp_path)).bytes > 0
    assert not list(tmp_path.glob("downloads/*"))


@pytest.mark.parametrize("text", ["org/name@", "org/name@../x", "org/name@a b", "org/name@-x"])
def test_revisions_that_are_none(text: str) -> None:
    with pytest.raises(InvalidSource, match="no revision"):
        HubSource.parse(text)


@pytest.mark.parametrize("text", ["name", "a/b/c", "../x", "http://x/y", "org/..", "", "org/na me"])
def test_what_is_no_hub_id(text: str) -> None:
    assert HubSource.parse(text) is None
