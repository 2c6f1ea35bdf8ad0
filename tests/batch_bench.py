"""A batch worker over a session database and a data directory, without a server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from service.generation.batches.journal import Entry, Journal
from service.generation.batches.pacing import Load
from service.generation.batches.run import LineReply, LineRequest
from service.generation.batches.worker import BatchWorker, ServerState, WorkerLimits
from service.storage.files.contents import Contents
from service.storage.files.files import Files
from service.storage.sessions import BatchFacts, SessionStore, StoredBatch
from tests.sessions import Clock

URL = "/v1/completions"
FACTS = BatchFacts(endpoint=URL, output_seconds=3600)
LINES = 3
DAY = 24 * 3600.0


@dataclass
class Bench:
    """A worker over a store and a data directory, without a server. A line is answered when `go` is set."""

    store: SessionStore
    directory: Path
    clock: Clock
    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[LineRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = Files(self.directory / "files", self._found, 10**6, 10**9)
        self.worker = BatchWorker(
            self._found,
            self.files,
            Contents(self.directory / "batches"),
            (self.answer, lambda value: msgspec.json.encode(value) + b"\n"),
            ServerState(load=Load, rests=lambda: False),
            WorkerLimits(8, 1.0, 10**6),
            (URL,),
        )

    async def _found(self) -> SessionStore:
        return self.store

    async def answer(self, request: LineRequest) -> LineReply:
        self.asked.append(request)
        await self.go.wait()
        return LineReply(200, "r", b"{}")

    async def batch(self, name: str = "a", seconds: float = 30 * DAY, method: str = "POST") -> StoredBatch:
        draft = self.files.contents.draft()
        for n in range(1, LINES + 1):
            line = {"custom_id": f"{name}{n}", "method": method, "url": URL, "body": {}}
            draft.write(json.dumps(line).encode() + b"\n")
        file = await self.files.keep("ann", draft, "in.jsonl", "batch", seconds)
        self.clock.move(1)
        return await self.store.batches.create("ann", file.id, FACTS)

    async def begun(self, batch: StoredBatch, status: str, answered: int) -> None:
        """Brings a batch to this status, with its first lines in the journal: the second has failed."""
        if status == "validating":
            return
        claim = await self.store.batches.claim("another", lambda found: found.id == batch.id)
        assert claim is not None
        await self.store.batches.advance(claim, "in_progress", total=LINES)
        if status == "finalizing":
            await self.store.batches.advance(claim, "finalizing")
        if status == "cancelling":
            await self.store.batches.cancel("ann", batch.id)
        await self.store.batches.release(claim)
        journal = Journal(self.journal(batch))
        journal.append([Entry(n, n != 2, b'{"custom_id":"a%d"}\n' % n) for n in range(1, answered + 1)])
        journal.close()

    def journal(self, batch: StoredBatch) -> Path:
        return self.directory / "batches" / f"{batch.id}.journal"

    async def now(self, batch: StoredBatch) -> StoredBatch:
        return await self.store.batches.get("ann", batch.id)

    async def status(self, batch: StoredBatch) -> str:
        return (await self.now(batch)).status

    def lines(self, id: str | None) -> list[Any]:
        lines = self.files.contents.path(id).read_bytes().splitlines() if id else []
        return [json.loads(line) for line in lines]

    def written(self, id: str | None) -> list[Any]:
        return [each["custom_id"] for each in self.lines(id)]

    async def ends(self) -> None:
        """Makes one pass."""
        async with asyncio.timeout(20):
            await self.worker._pass()
