"""Stored batches and files, and the knowledge base: one worker at a time, owners apart, pages, limits, and what goes
with what."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, Stale, StorageFull
from service.storage.files.contents import Draft
from service.storage.files.files import Files
from service.storage.sessions import BatchFacts, Limits, NewReply, Passage, SessionStore, StoredBatch
from service.storage.sessions.batches import _LOOKED_AT, LEASE_SECONDS
from service.storage.sessions.knowledge import MOST_FOUND
from service.text.passages import LONGEST, passages_of
from tests.sessions import KINDS, Clock, new_database, say

FACTS = BatchFacts(endpoint="/v1/completions", output_seconds=3600, metadata={"a": "\x00 가"})
MENU = "불고기 도시락 9,500원\n김치 도시락 8,000원"


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


@pytest.mark.parametrize("holder", ["nobody", "a silent worker", "a worker"])
async def test_a_batch_that_nobody_has_begun_is_cancelled_at_once(
    store: SessionStore, clock: Clock, holder: str
) -> None:
    batch = await a_batch(store)
    claim = None if holder == "nobody" else await store.batches.claim("one", anything)
    if holder == "a silent worker":
        clock.move(LEASE_SECONDS)
    status = "cancelling" if holder == "a worker" else "cancelled"
    assert (await store.batches.cancel("ann", batch.id)).status == status
    if status == "cancelled":
        await store.files.delete("ann", "file-1")
    if holder == "a silent worker":
        assert claim is not None
        with pytest.raises(Conflict, match="Another instance"):
            await store.batches.advance(claim, "in_progress")


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


async def test_a_file_that_an_open_batch_reads_is_kept_past_its_time(store: SessionStore, clock: Clock) -> None:
    """Nobody else reads it then."""
    await store.files.add("ann", "file-1", purpose="batch", filename="in", size=5, seconds=60)
    await store.files.add("ann", "file-2", purpose="batch", filename="in", size=5, seconds=60)
    batch = await store.batches.create("ann", "file-1", FACTS)
    clock.move(61)
    await store.files.remove_expired()
    assert set((await store.files.present())[0]) == {"file-1"}
    for refused in (store.files.get("ann", "file-1"), store.batches.create("ann", "file-1", FACTS)):
        with pytest.raises(NotFound):
            await refused
    assert (await store.files.get("ann", "file-1", batch.created_at)).id == "file-1"
    claim = await store.batches.claim("one", anything)
    assert claim is not None
    await store.batches.advance(claim, "completed")
    await store.files.remove_expired()
    assert (await store.files.present())[0] == {}


async def test_a_worker_finds_its_batch_behind_many_of_others(store: SessionStore) -> None:
    for n in range(2 * _LOOKED_AT + 1):
        batch = await a_batch(store, file=f"file-{n}")
    claim = await store.batches.claim("one", lambda found: found.id == batch.id)
    assert claim is not None and claim.batch.id == batch.id
    assert await store.batches.claim("two", lambda found: False) is None


def a_full_disk(draft: Draft, data: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("manner", ["refused", "failed", "cancelled", "kept"])
async def test_no_upload_leaves_its_bytes_counted(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manner: str
) -> None:
    async def found() -> SessionStore:
        return store

    async def upload() -> None:
        async with files.receiving(0) as receiving:
            await receiving.write(b"x" * 1000)
            if manner != "kept":
                await receiving.write(b"x" * 1000)
            await receiving.keep("ann", "in", "batch", 60)

    begun, may_end, real = threading.Event(), threading.Event(), Draft.write

    def slow(draft: Draft, data: bytes) -> None:
        begun.set()
        assert may_end.wait(20)
        real(draft, data)

    files = Files(
        tmp_path / "files", found, 10**6, 5000 if manner == "kept" else 1500 if manner == "refused" else 10**6
    )
    if manner in ("failed", "cancelled"):
        monkeypatch.setattr(Draft, "write", a_full_disk if manner == "failed" else slow)
    uploading = asyncio.create_task(upload())
    if manner == "cancelled":
        await asyncio.to_thread(begun.wait, 20)
        uploading.cancel()
    with suppress(StorageFull, OSError, asyncio.CancelledError):
        await uploading
    may_end.set()
    assert files.arriving == 0
    assert len((await store.files.present())[0]) == (manner == "kept")


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


@given(st.text(alphabet="가나 .\n?a", max_size=3000))
def test_passages_are_short_and_lose_nothing(text: str) -> None:
    passages = passages_of(text)
    assert all(0 < len(passage) <= LONGEST for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


async def test_passages_are_found_by_pairs_of_characters(store: SessionStore) -> None:
    menu = await store.knowledge.add("ann", MENU, "메뉴판")
    hours = await store.knowledge.add(
        "ann", "We are open from 10:00 to 20:00.\n\nParking is behind the house.", "Hours"
    )
    assert menu.passages == 1 and menu.id.startswith("k_")
    assert await store.knowledge.get("ann", menu.id) == menu
    found = await store.knowledge.find("ann", "김치 도시락은 얼마예요?")
    assert found and found[0] == Passage(menu.id, "메뉴판", MENU)
    found = await store.knowledge.find("ann", "where can I do my parking?")
    assert found and found[0].id == hours.id
    assert await store.knowledge.find("ann", "메뉴") == (Passage(menu.id, "메뉴판", MENU),), "two syllables of a title"
    for nothing in ("xyzzy", "", "  "):
        assert await store.knowledge.find("ann", nothing) == ()


async def test_documents_are_the_owners_and_those_of_a_session_are_its_alone(store: SessionStore) -> None:
    here, there = await store.create("ann"), await store.create("ann")
    shared = await store.knowledge.add("ann", "the wifi password is bento")
    own = await store.knowledge.add("ann", "the wifi of this table is slow", session_id=here.id)
    ids = {
        session: {passage.id for passage in await store.knowledge.find("ann", "wifi", session) or ()}
        for session in (None, here.id, there.id)
    }
    assert ids == {None: {shared.id}, here.id: {shared.id, own.id}, there.id: {shared.id}}
    assert await store.knowledge.find("bob", "wifi") is None, "there is nothing of his"
    for call in (store.knowledge.get, store.knowledge.delete):
        with pytest.raises(NotFound):
            await call("bob", shared.id)
        with pytest.raises(NotFound):
            await call("ann", "k_\x00")
    with pytest.raises(NotFound):
        await store.knowledge.add("bob", "mine?", session_id=here.id)


async def test_a_sessions_document_is_found_beside_many_of_other_sessions(store: SessionStore) -> None:
    """The fifty most alike of all sessions of an owner left none of this one's."""
    sessions = [await store.create("ann") for _ in range(MOST_FOUND + 10)]
    for number, session in enumerate(sessions):
        await store.knowledge.add("ann", f"The delivery address is street number {number}.", session_id=session.id)
    for session in (sessions[0], sessions[-1]):
        found = await store.knowledge.find("ann", "What is the delivery address?", session.id)
        assert found is not None and len(found) == 1


async def test_documents_are_listed_newest_first(store: SessionStore, clock: Clock) -> None:
    session = await store.create("ann")
    made = []
    for number in range(5):
        clock.move(1)
        made.append(await store.knowledge.add("ann", f"text {number}", session_id=session.id if number % 2 else None))
    page = await store.knowledge.all("ann", limit=3)
    rest = await store.knowledge.all("ann", limit=3, cursor=page.next_cursor)
    assert [*page.data, *rest.data] == made[::-1] and rest.next_cursor is None
    assert (await store.knowledge.all("ann", session_id=session.id)).data == (made[3], made[1])
    assert (await store.knowledge.all("ann", session_id="s_\x00")).data == ()


async def test_documents_go_with_their_session_and_with_their_owner(store: SessionStore) -> None:
    session = await store.create("ann")
    await say(store, "ann", session.id, "hi")
    await store.summaries.keep("ann", session.id, "some", "what was said", before=2, revision=2)
    kept = await store.knowledge.add("ann", "shared words")
    gone = await store.knowledge.add("ann", "private words", session_id=session.id)
    await store.delete("ann", session.id)
    with pytest.raises(NotFound):
        await store.knowledge.get("ann", gone.id)
    assert [passage.id for passage in await store.knowledge.find("ann", "words") or ()] == [kept.id]
    await store.knowledge.delete("ann", kept.id)
    assert await store.knowledge.find("ann", "words") is None
    await store.knowledge.add("ann", "again words")
    await store.erase_owner("ann")
    assert (await store.knowledge.all("ann")).data == ()


@pytest.mark.parametrize("kind", KINDS)
async def test_limits(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    limits = Limits(max_per_owner=2, max_message_bytes=10)
    store = await SessionStore.open(new_database(kind, tmp_path_factory.mktemp("limits")), limits)
    try:
        for text, title, named in (("x" * 11, None, "text"), ("x", "y" * 201, "title"), ("\x00", None, "U\\+0000")):
            with pytest.raises(InvalidRequest, match=named):
                await store.knowledge.add("ann", text, title)
        await store.knowledge.add("ann", "one")
        await store.knowledge.add("ann", "two")
        with pytest.raises(QuotaExceeded, match="2 documents"):
            await store.knowledge.add("ann", "three")
    finally:
        await store.close()


async def test_summaries_are_the_newest_few_of_a_session_and_its_alone(store: SessionStore, clock: Clock) -> None:
    here, there = await store.create("ann"), await store.create("ann")
    for number in range(6):
        clock.move(1)
        await store.summaries.keep("ann", here.id, f"key {number}", f"text {number}", before=0, revision=1)
    await store.summaries.keep("ann", here.id, "key 5", "made anew", before=0, revision=1)
    kept = {"key 2": "text 2", "key 3": "text 3", "key 4": "text 4", "key 5": "made anew"}
    assert await store.summaries.of("ann", here.id) == kept
    assert await store.summaries.of("ann", there.id) == {}
    assert (await store.get("ann", here.id)).revision == 1, "no write that a client could be stale about"
    with pytest.raises(NotFound):
        await store.summaries.of("bob", here.id)


async def test_a_summary_keeps_no_words_of_a_message_that_was_edited_or_deleted(store: SessionStore) -> None:
    """Not those that reach so far, nor one that was being made meanwhile; those of messages before it stay."""
    for change in ("edit", "delete", "system"):
        session = await store.create("ann", {"system": "be brief"})
        turns = [await say(store, "ann", session.id, f"question {turn}") for turn in range(3)]
        revision = turns[-1].session.revision
        for before in (2, 4, 6):
            await store.summaries.keep("ann", session.id, f"to {before}", "words", before=before, revision=revision)
        edited = turns[1].messages[0].id
        if change == "edit":
            await store.edit_message("ann", session.id, edited, pinned=True)
            assert len(await store.summaries.of("ann", session.id)) == 3, "a pin changes no words"
            await store.edit_message("ann", session.id, edited, content="other words")
        elif change == "delete":
            await store.delete_message("ann", session.id, edited)
        else:
            await store.patch("ann", session.id, {"system": "be long"})
        assert set(await store.summaries.of("ann", session.id)) == ({"to 2"} if change != "system" else set())
        with pytest.raises(Stale):
            await store.summaries.keep("ann", session.id, "late", "words", before=4, revision=revision)
        now = (await store.get("ann", session.id)).revision
        await store.summaries.keep("ann", session.id, "new", "other words", before=4, revision=now)
        await store.replace_last_reply("ann", session.id, NewReply("answered again"))
        assert "new" in await store.summaries.of("ann", session.id), "which never reaches the last turn"
