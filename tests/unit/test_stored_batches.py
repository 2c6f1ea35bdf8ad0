"""Claims of batches in both databases: one worker at a time, none that showed no sign of life, cancellation wins."""

from __future__ import annotations

import pytest

from service.errors import Conflict, NotFound, QuotaExceeded, StorageFull
from service.storage.sessions import BatchFacts, Limits, SessionStore, StoredBatch
from service.storage.sessions.batches import LEASE_SECONDS
from tests.sessions import Clock

FACTS = BatchFacts(endpoint="/v1/completions", output_seconds=3600, metadata={"a": "\x00 가"})


async def a_batch(store: SessionStore, owner: str = "ann", file: str = "file-1") -> StoredBatch:
    await store.files.add(owner, file, purpose="batch", filename="in", size=5, seconds=None)
    return await store.batches.create(owner, file, FACTS)


def anything(batch: StoredBatch) -> bool:
    return True


async def test_one_worker_at_a_time_and_the_next_when_it_is_silent(store: SessionStore, clock: Clock) -> None:
    batch = await a_batch(store)
    assert await store.batches.claim("other", lambda found: found.input_file_id == "elsewhere") is None
    first = await store.batches.claim("one", anything)
    assert first is not None and first.batch == batch and batch.facts.metadata == {"a": "\x00 가"}
    assert await store.batches.claim("two", anything) is None
    clock.move(LEASE_SECONDS - 1)
    await store.batches.renew(first, 3, 1)
    clock.move(LEASE_SECONDS - 1)
    assert await store.batches.claim("two", anything) is None, "it was renewed"
    clock.move(1)
    second = await store.batches.claim("two", anything)
    assert second is not None and (second.batch.facts.completed, second.batch.facts.failed) == (3, 1)
    for late in (store.batches.renew(first, 9, 9), store.batches.advance(first, "failed")):
        with pytest.raises(Conflict, match="Another instance"):
            await late
    await store.batches.release(first)
    assert await store.batches.claim("three", anything) is None, "only its holder gives a claim up"
    await store.batches.release(second)
    assert await store.batches.claim("three", anything) is not None


async def test_a_cancelled_batch_goes_no_other_way(store: SessionStore) -> None:
    batch = await a_batch(store)
    claim = await store.batches.claim("one", anything)
    assert claim is not None
    assert (await store.batches.advance(claim, "in_progress", total=7)).facts.total == 7
    assert (await store.batches.cancel("ann", batch.id)).status == "cancelling"
    assert (await store.batches.advance(claim, "finalizing")).status == "cancelling"
    ended = await store.batches.advance(claim, "cancelled", completed=2)
    assert ended.status == "cancelled" and set(ended.facts.times) >= {"validating", "cancelling", "cancelled"}
    assert await store.batches.claim("two", anything) is None
    with pytest.raises(Conflict, match="cancelled already"):
        await store.batches.cancel("ann", batch.id)
    assert await store.batches.present() == {"cancelled": 1}


async def test_files_and_batches_are_their_owner_s(store: SessionStore) -> None:
    batch = await a_batch(store)
    for refused in (
        store.files.get("mallory", "file-1"),
        store.files.delete("mallory", "file-1"),
        store.files.all("mallory", after="file-1", limit=5),
        store.batches.get("mallory", batch.id),
        store.batches.cancel("mallory", batch.id),
        store.batches.all("mallory", after=batch.id, limit=5),
        store.batches.create("mallory", "file-1", FACTS),
        store.files.get("ann", "\x00"),
    ):
        with pytest.raises(NotFound):
            await refused
    assert (await store.files.all("mallory", limit=5), await store.batches.all("mallory", after=None, limit=5)) == (
        ([], False),
        ([], False),
    )
    with pytest.raises(Conflict, match=batch.id):
        await store.files.delete("ann", "file-1")
    await store.erase_owner("ann")
    assert await store.files.present() == ({}, 0) and await store.batches.present() == {}


async def test_pages_in_both_orders_and_the_limits(store: SessionStore, clock: Clock) -> None:
    store.files._limits = Limits(max_per_owner=4)
    for n in range(4):
        await store.files.add("ann", f"f{n}", purpose="batch", filename="in", size=5, seconds=60.0 * n or None)
        clock.move(n % 2)
    for newest_first, order in ((True, ["f3", "f2", "f1", "f0"]), (False, ["f0", "f1", "f2", "f3"])):
        first, more = await store.files.all("ann", limit=3, newest_first=newest_first)
        rest, none = await store.files.all("ann", after=first[-1].id, limit=3, newest_first=newest_first)
        assert [each.id for each in first + rest] == order and (more, none) == (True, False)
    new = {"purpose": "batch", "filename": "in", "size": 5000, "seconds": None}
    with pytest.raises(QuotaExceeded):
        await store.files.add("ann", "f4", **new, most_bytes=10**9)  # type: ignore[arg-type]
    with pytest.raises(StorageFull) as refused:
        await store.files.add("bob", "f4", **new, most_bytes=4 * 4096 + 4999)  # type: ignore[arg-type]
    assert refused.value.numbers == {"max_total_bytes": 4 * 4096 + 4999, "needed_bytes": 4 * 4096 + 5000}
    clock.move(61)
    await store.files.remove_expired()
    assert (await store.files.present())[0] == {"f0": None, "f2": None, "f3": None}
