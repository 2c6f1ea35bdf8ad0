"""Files joins the rows of files and their contents: a file is there with both or not at all.

Contents lie in this instance's data directory. Where instances share a database and a store they lie in the store too,
and an instance brings those that it is asked for. Without a store an instance knows files whose content another has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import models.errors
from models.errors import Corrupt, StoreUnavailable
from models.repository.store.contents import SharedContents
from service.errors import NotFound, TooLarge, Unavailable
from service.storage.files.contents import STRAY_SECONDS, Contents, Draft
from service.storage.sessions import StoredFile, check_room, new_file_id

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore

BATCH: Final = "batch"
OUTPUT: Final = "batch_output"
SWEEP_SECONDS: Final = 600.0
EXPIRE_FILES: Final = "expire_files"
FORM_BYTES: Final = 64 * 1024
"""What a form may have beside its file."""
DEFAULT_SECONDS: Final = 30 * 86400
"""How long a file is kept that says nothing else, as OpenAI keeps the files of batches."""


class Receiving:
    """The content of an upload, as it comes. The event loop owns it."""

    def __init__(self, files: Files, draft: Draft, room: int) -> None:
        self._files = files
        self._draft = draft
        self._room = room
        self.counted = 0
        """Bytes of this upload in `Files.arriving`, written or not."""

    async def write(self, data: bytes) -> None:
        """Takes the next bytes. Raises TooLarge and StorageFull, before it writes them."""
        self._files.check_size(self._draft.size + len(data))
        arriving = self._files.arriving + len(data)
        check_room(self._files.total_bytes - self._room + arriving, self._files.total_bytes)
        self._files.arriving = arriving
        self.counted += len(data)
        await asyncio.to_thread(self._draft.write, data)

    async def keep(self, owner: str, filename: str, purpose: str, seconds: float) -> StoredFile:
        """Makes the file, durably, which its owner has for so many seconds. Raises StorageFull, QuotaExceeded."""
        return await self._files.keep(owner, self._draft, filename, purpose, seconds)


class Files:
    """The event loop owns Files. `max_bytes` bounds one upload; `total_bytes` bounds uploads by all files together."""

    def __init__(
        self,
        directory: Path,
        store: Callable[[], Awaitable[SessionStore]],
        max_bytes: int,
        total_bytes: int,
        shared: SharedContents | None = None,
        is_fit: Callable[[], bool] = lambda: True,
    ) -> None:
        """`shared` are the contents of all instances, None where there is no store that they share. Nothing expires
        while `is_fit` says no: by a wrong clock, others' files would."""
        self.contents = Contents(directory)
        self.max_bytes = max_bytes
        self.total_bytes = total_bytes
        self.arriving = 0
        """Bytes of uploads that have no row yet."""
        self._store = store
        self._shared = shared
        self._is_fit = is_fit

    def check_size(self, size: int) -> None:
        """Raises TooLarge for a file of more than `max_bytes`."""
        if size > self.max_bytes:
            raise TooLarge(
                f"The file is larger than {self.max_bytes} bytes: send it in parts, or set DOSIRAK_FILES_MAX_BYTES "
                "higher",
                max_file_bytes=self.max_bytes,
            )

    def check_declared(self, size: int) -> None:
        """Raises TooLarge for a form whose declared size leaves no doubt that its file is too large."""
        self.check_size(size - FORM_BYTES)

    @asynccontextmanager
    async def receiving(self, declared: int) -> AsyncIterator[Receiving]:
        """Opens an upload of about `declared` bytes; what is not kept is removed at the end. Raises StorageFull."""
        _, present = await (await self._store()).files.present()
        check_room(present + self.arriving + declared, self.total_bytes)
        draft = await asyncio.to_thread(self.contents.draft)
        receiving = Receiving(self, draft, self.total_bytes - present)
        try:
            yield receiving
        finally:
            self.arriving -= receiving.counted
            await asyncio.shield(asyncio.to_thread(draft.discard))

    async def keep(self, owner: str, draft: Draft, filename: str, purpose: str, seconds: float) -> StoredFile:
        id, store = new_file_id(), await self._store()
        await asyncio.to_thread(draft.finish, id)
        sha256 = None
        try:
            sha256 = await self.share(id, draft.sha256)
            return await store.files.add(
                owner,
                id,
                purpose=purpose,
                filename=filename,
                size=draft.size,
                seconds=seconds,
                most_bytes=self.total_bytes,
                sha256=sha256,
            )
        except Exception:
            await self.forget(id, sha256)
            raise

    async def share(self, id: str, sha256: str) -> str | None:
        """Gives a content that is here to all instances. Returns the sha256 that the file's row gets, None where there
        is no store. Raises StoreUnavailable."""
        if self._shared is None:
            return None
        await asyncio.to_thread(self._shared.put, id, sha256, self.contents.path(id))
        return sha256

    async def forget(self, id: str, sha256: str | None) -> None:
        """Removes the content of a file without a row. What the store does not let go now, a later sweep removes."""
        await asyncio.to_thread(self.contents.remove, id)
        if self._shared is not None and sha256 is not None:
            with suppress(StoreUnavailable):
                await asyncio.to_thread(self._shared.remove, id, sha256)

    async def get(self, owner: str, id: str) -> StoredFile:
        return await (await self._store()).files.get(owner, id)

    async def all(
        self, owner: str, purpose: str | None, after: str | None, limit: int, *, newest_first: bool
    ) -> tuple[list[StoredFile], bool]:
        store = await self._store()
        return await store.files.all(owner, purpose=purpose, after=after, limit=limit, newest_first=newest_first)

    async def path(self, owner: str, id: str) -> tuple[StoredFile, Path]:
        """Returns the file and where its content is, brought from the store where it was not here. Raises NotFound,
        and Unavailable, with what is missing, where the content cannot be had; StoreUnavailable."""
        file = await self.get(owner, id)
        if not await asyncio.to_thread(self.contents.has, id):
            await self._bring(file)
        return file, self.contents.path(id)

    async def has(self, owner: str, id: str, at: datetime) -> bool:
        """Returns whether the content is here, or could be brought; for a batch that was made at this time, so also
        where its file has expired since. Raises StoreUnavailable."""
        if await asyncio.to_thread(self.contents.has, id):
            return True
        try:
            await self._bring(await (await self._store()).files.get(owner, id, at))
        except (NotFound, Unavailable):
            return False
        return True

    async def brought(self) -> set[str]:
        """Returns the ids of the files of open batches that this instance can bring."""
        return set() if self._shared is None else await (await self._store()).files.in_store()

    async def delete(self, owner: str, id: str) -> None:
        """Deletes a file. Raises NotFound, and Conflict while a batch reads it."""
        file = await (await self._store()).files.delete(owner, id)
        await self.forget(id, file.sha256)

    async def _bring(self, file: StoredFile) -> None:
        shared, sha256 = self._shared, file.sha256
        if sha256 is None:
            raise Unavailable(
                "The content of this file is on another instance alone, the one that took the upload: ask that one, or "
                "set DOSIRAK_STORE_URL on every instance and upload the file again"
            )
        if shared is None:
            raise Unavailable(
                "The content of this file is in a store, and this instance has none: set its DOSIRAK_STORE_URL"
            )
        try:
            await asyncio.to_thread(
                self.contents.take, file.id, lambda path: shared.bring(file.id, sha256, file.bytes, path)
            )
        except (models.errors.NotFound, Corrupt) as error:
            raise Unavailable(f"The content of this file cannot be had: {error}; upload it again") from None

    async def expire(self) -> None:
        """Makes one sweep: the work of a background task."""
        if self._is_fit():
            await self.sweep()

    async def sweep(self) -> None:
        """Removes what has expired, and contents without a row."""
        store = await self._store()
        await store.files.remove_expired()
        known, _ = await store.files.present()
        await asyncio.to_thread(self.contents.sweep, known)
        if self._shared is not None:
            await asyncio.to_thread(self._shared.sweep, known.items(), STRAY_SECONDS)
