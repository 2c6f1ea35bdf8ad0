"""Files joins the rows of files and their contents: a file is there with both or not at all.

Contents lie in this instance's data directory. Another instance with the same database knows the file, not its content.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.errors import TooLarge, Unavailable
from service.files.contents import Contents, Draft
from service.sessions import StoredFile, check_room, new_file_id

if TYPE_CHECKING:
    from service.sessions import SessionStore

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

    async def write(self, data: bytes) -> None:
        """Takes the next bytes. Raises TooLarge and StorageFull, before it writes them."""
        self._files.check_size(self._draft.size + len(data))
        self._files.arriving += len(data)
        check_room(self._files.total_bytes - self._room + self._files.arriving, self._files.total_bytes)
        await asyncio.to_thread(self._draft.write, data)

    async def keep(self, owner: str, filename: str, purpose: str, seconds: float) -> StoredFile:
        """Makes the file, durably, which its owner has for so many seconds. Raises StorageFull, QuotaExceeded."""
        return await self._files.keep(owner, self._draft, filename, purpose, seconds)


class Files:
    """The event loop owns Files. `max_bytes` bounds one upload; `total_bytes` bounds uploads by all files together."""

    def __init__(
        self, directory: Path, store: Callable[[], Awaitable[SessionStore]], max_bytes: int, total_bytes: int
    ) -> None:
        self.contents = Contents(directory)
        self.max_bytes = max_bytes
        self.total_bytes = total_bytes
        self.arriving = 0
        """Bytes of uploads that have no row yet."""
        self._store = store

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
        try:
            yield Receiving(self, draft, self.total_bytes - present)
        finally:
            self.arriving -= draft.size
            await asyncio.shield(asyncio.to_thread(draft.discard))

    async def keep(self, owner: str, draft: Draft, filename: str, purpose: str, seconds: float) -> StoredFile:
        id, store = new_file_id(), await self._store()
        await asyncio.to_thread(draft.finish, id)
        try:
            return await store.files.add(
                owner,
                id,
                purpose=purpose,
                filename=filename,
                size=draft.size,
                seconds=seconds,
                most_bytes=self.total_bytes,
            )
        except Exception:
            await asyncio.to_thread(self.contents.remove, id)
            raise

    async def get(self, owner: str, id: str) -> StoredFile:
        return await (await self._store()).files.get(owner, id)

    async def all(
        self, owner: str, purpose: str | None, after: str | None, limit: int, *, newest_first: bool
    ) -> tuple[list[StoredFile], bool]:
        store = await self._store()
        return await store.files.all(owner, purpose=purpose, after=after, limit=limit, newest_first=newest_first)

    async def path(self, owner: str, id: str) -> tuple[StoredFile, Path]:
        """Returns the file and where its content is. Raises NotFound, and Unavailable where another instance has it."""
        file = await self.get(owner, id)
        if not await asyncio.to_thread(self.contents.has, id):
            raise Unavailable("The content of this file is on another instance: ask the one that took the upload")
        return file, self.contents.path(id)

    async def delete(self, owner: str, id: str) -> None:
        """Deletes a file. Raises NotFound, and Conflict while a batch reads it."""
        await (await self._store()).files.delete(owner, id)
        await asyncio.to_thread(self.contents.remove, id)

    async def expire(self) -> None:
        """Waits, then makes one sweep: the work of a background task."""
        await asyncio.sleep(SWEEP_SECONDS)
        await self.sweep()

    async def sweep(self) -> None:
        """Removes what has expired, and contents without a row."""
        store = await self._store()
        await store.files.remove_expired()
        known, _ = await store.files.present()
        await asyncio.to_thread(self.contents.sweep, known)
