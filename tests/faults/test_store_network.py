"""Calls to a bucket die on their way: cut, late, refused or half. They are tried again; what is wrong is never loaded,
and what does not come through is told with what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from models.errors import Conflict, RepositoryError, StoreUnavailable
from models.manifest import Manifest
from models.repository.repository import Repository
from models.repository.store import s3
from models.repository.store.remotes import remote_of
from tests.s3_faults import DELAY_SECONDS, Faults, Kind
from tests.stores import fresh_store, instance, s3_server, weights
from tests.versions import publish

ALWAYS = 1000
TRIES = 3
KINDS: tuple[Kind, ...] = ("cut", "cut after", "500", "slow down", "truncated", "delayed")
OF_PUSHES = tuple(kind for kind in KINDS if kind != "truncated")  # of a write the answer has no content
QUICK = tuple(pytest.param(kind, marks=[pytest.mark.nightly] if kind == "delayed" else []) for kind in KINDS)
CONTENT = "weights " * 1000


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with s3_server() as endpoint:
        made = Faults(endpoint)
        with made.running(), pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", made.url)
            patch.setattr(s3, "_READ", timedelta(seconds=DELAY_SECONDS / 2))
            yield made


@pytest.fixture
def url(faults: Faults, tmp_path: Path) -> str:
    faults.clear()
    return fresh_store("s3", tmp_path)


def is_whole_or_absent(tmp_path: Path, url: str, version: str) -> bool:
    """Looks with a fresh instance; returns whether the version is there, whole."""
    fresh = instance(tmp_path, f"fresh-{version}-{len(list(tmp_path.iterdir()))}", url)
    found = [each for each in fresh.versions("demo") if each.version == version]
    for manifest in found:
        fresh.fetch(manifest)
        fresh.verify(manifest)
    return bool(found)


@pytest.mark.parametrize("kind", QUICK)
def test_a_fetch_whose_calls_die_is_tried_again(url: str, faults: Faults, tmp_path: Path, kind: Kind) -> None:
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest = publish(first, CONTENT)
    second.refresh()
    planned = faults.plan(kind, "GET", "/blobs/", TRIES - 1)
    second.fetch(manifest)
    assert planned.met == TRIES - 1
    assert weights(second).read_bytes() == weights(first).read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_fetch_that_does_not_come_through_loads_nothing_and_says_what_to_do(
    url: str, faults: Faults, tmp_path: Path, kind: Kind
) -> None:
    first, second = instance(tmp_path, "a", url), instance(tmp_path, "b", url)
    manifest = publish(first, CONTENT)
    second.refresh()
    planned = faults.plan(kind, "GET", "/blobs/", ALWAYS)
    with pytest.raises(StoreUnavailable) as told:
        second.fetch(manifest)
    assert planned.met >= TRIES
    assert_says_what_to_do(str(told.value), kind)
    assert str(told.value).startswith("demo:1: model.safetensors: The store does not take or give blobs/")
    assert not weights(second).exists() and list((tmp_path / "b" / "tmp").iterdir()) == []
    faults.clear()
    second.fetch(manifest)
    second.verify(manifest)


def assert_says_what_to_do(sentence: str, kind: Kind) -> None:
    reasons = {
        "500": "500 Internal Server Error",
        "slow down": "SlowDown",
        "truncated": "response body error",
        "delayed": "there is no answer in time",
    }
    assert reasons.get(kind, "error sending request") in sentence
    assert "DOSIRAK_STORE_URL" in sentence and sentence.endswith("then try again")
    assert "127.0.0.1" not in sentence and "\n" not in sentence


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["/blobs/", "/manifests/"])
@pytest.mark.parametrize("kind", OF_PUSHES)
def test_a_push_whose_call_dies_is_tried_again(url: str, faults: Faults, tmp_path: Path, kind: Kind, part: str) -> None:
    """Also the conditional write: a repetition that finds its own manifest has published."""
    first = instance(tmp_path, "a", url)
    planned = faults.plan(kind, "PUT", part)
    assert publish(first, CONTENT).version == "1"
    assert planned.met == 1
    assert is_whole_or_absent(tmp_path, url, "1")


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["/blobs/", "/manifests/"])
@pytest.mark.parametrize("kind", OF_PUSHES)
def test_a_push_that_does_not_come_through_has_published_nothing_or_all_of_it(
    url: str, faults: Faults, tmp_path: Path, kind: Kind, part: str
) -> None:
    first = instance(tmp_path, "a", url)
    planned = faults.plan(kind, "PUT", part, ALWAYS)
    with pytest.raises(StoreUnavailable) as told:
        publish(first, CONTENT, version="7")
    assert planned.met >= TRIES or kind == "delayed"
    assert_says_what_to_do(str(told.value), kind)
    faults.clear()
    is_there = is_whole_or_absent(tmp_path, url, "7")
    assert not (is_there and part == "/blobs/") and not (is_there and kind in ("cut", "500", "slow down"))
    first.refresh()
    if not is_there:
        publish(first, CONTENT, version="7")
    assert is_whole_or_absent(tmp_path, url, "7")


def test_a_list_that_is_cut_is_tried_again(url: str, faults: Faults, tmp_path: Path) -> None:
    publish(instance(tmp_path, "a", url), CONTENT)
    second = instance(tmp_path, "b", url)
    planned = faults.plan("truncated", "GET", "list-type")
    assert second.refresh() == [] and planned.met == 1
    assert [each.version for each in second.versions("demo")] == ["1"]


def test_of_two_that_publish_one_version_at_once_one_wins_and_the_other_is_told(
    url: str, faults: Faults, tmp_path: Path
) -> None:
    """Both look, see no version 7, and write at the same moment; answers are lost meanwhile."""
    instances = [instance(tmp_path, name, url) for name in "ab"]
    planned = faults.plan("cut after", "PUT", "/manifests/", 2)
    barrier = threading.Barrier(2)
    published, refused = dict[str, Manifest](), list[RepositoryError]()

    def push(name: str, repository: Repository) -> None:
        assert repository.mirror is not None
        store = repository.mirror.store
        write = store.publish

        def at_once(manifest: Manifest) -> bool:
            barrier.wait(30)
            return write(manifest)

        vars(store)["publish"] = at_once
        try:
            published[name] = publish(repository, f"of {name}", version="7")
        except RepositoryError as error:
            refused.append(error)

    threads = [threading.Thread(target=push, args=pair) for pair in zip("ab", instances, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert planned.met == 2
    assert len(published) == 1 and len(refused) == 1 and isinstance(refused[0], Conflict)
    assert "demo:7" in str(refused[0]) and "exists" in str(refused[0])
    (winner,) = published.values()
    for each in instances:
        each.refresh()
        assert each.get("demo", "7") == winner
        each.fetch(winner)
        each.verify(winner)


def test_a_store_that_nobody_answers_for_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server():
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(StoreUnavailable, match=r"there is no connection; .*AWS_ENDPOINT_URL.*try again$"):
            remote_of("s3://versions/x").get("dosirak.json")
