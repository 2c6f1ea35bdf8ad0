"""A run is one instance's work on one batch: it validates the file, answers each line once, and writes the outputs.

Every step can be repeated: a run that is killed leaves the batch's status and the journal, and the next run goes on. So
does a run whose lines wait for their next try: no line sleeps.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from models.errors import RepositoryError
from service.errors import DosirakError, NotFound
from service.generation.batches.journal import Entry, Journal
from service.generation.batches.lines import Line, Wrong, check, numbered, read
from service.generation.batches.pacing import LOOK_SECONDS
from service.generation.batches.room import Room
from service.storage.files.files import OUTPUT, Files
from service.storage.sessions import BatchClaim, StoredFile
from service.tasks import cancelled

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore

READ_AHEAD: Final = 32
MOST_TRIES: Final = 12
LONGEST_PAUSE_SECONDS: Final = 30.0
MOST_WAITING: Final = 32
"""While so many lines of a batch wait for their next try no other one begins: a version that loads in a few minutes
fails these lines, not the batch."""
UNANSWERED: Final = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed, because the batch was cancelled.",
    "server_error": "This request was not executed, because the server failed on the batch: send it again.",
}
NO_ROOM: Final = {
    "code": "storage_full",
    "message": "There is no room for the answer to this request: delete files, or have the server's operator set "
    "DOSIRAK_FILES_TOTAL_BYTES higher; then send it again in another batch.",
}
DEFECT: Final = Wrong("server_error", "The server failed on this batch; its log has the reason")
NO_INPUT: Final = Wrong("input_file_missing", "The content of the input file is not there any more")
log = structlog.get_logger(__name__)
Encode = Callable[[object], bytes]
"""Writes a value as one line of JSON."""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A body for an endpoint, as its owner's. `key` is the Idempotency-Key of a line whose answer is stored."""

    owner: str
    endpoint: str
    body: bytes
    key: str


@dataclass(frozen=True, slots=True)
class LineReply:
    """A response. `retry_after` is None where the same request would get the same response again."""

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None


AnswerLine = Callable[[LineRequest], Awaitable[LineReply]]
"""Gives the response to one line's body, as a client would get it."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a run works with. `wait_seconds` is 0 where one more line begins now beside so many in flight; else it is
    the time until the next look. While `gives_way` says yes no line begins: another batch is to have its turn."""

    store: SessionStore
    files: Files
    answer: AnswerLine
    encode: Encode
    wait_seconds: Callable[[int], float]
    now: Callable[[], datetime]
    rests: Callable[[], bool]
    gives_way: Callable[[], bool]
    observe: Callable[[str], None]
    most_line_bytes: int


class BatchRun:
    """The event loop owns a run. `stop` lets `work` return at its next look. `tries` counts those of each line, in all
    runs of the batch together; `room` is that of its outputs."""

    def __init__(self, claim: BatchClaim, journal: Journal, means: Means, tries: Counter[int], room: Room) -> None:
        self._claim = claim
        self.batch = claim.batch
        self._journal = journal
        self._means = means
        self._path: Path = means.files.contents.path(claim.batch.input_file_id)
        self._has_input = True
        self.room = room
        self._tries = tries
        self._waiting: dict[int, tuple[float, Line | Wrong]] = {}
        """Lines that are asked for again, and from when on, by `time.monotonic`."""
        self._pending: list[Entry] = []
        self._writing = asyncio.Lock()
        self._appending: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def counts(self) -> tuple[int, int]:
        """Returns how many lines have succeeded and failed, durably."""
        return self._journal.count(succeeded=True), self._journal.count(succeeded=False)

    @property
    def resumes_at(self) -> float:
        """Returns from when on, by `time.monotonic`, every line that waits may be asked for again."""
        return max((at for at, _ in self._waiting.values()), default=0.0)

    def stop(self) -> None:
        self._stopped = True

    async def validate(self) -> None:
        """Ends a new batch whose file is wrong or missing; any other one stays for `work`. Raises as `work`."""
        batch = self.batch
        self._has_input = await self._means.files.has(batch.owner, batch.input_file_id, batch.created_at)
        if batch.status != "validating" or batch.facts.total:
            return
        total, wrong = 0, [NO_INPUT]
        if self._has_input:
            most = self._means.most_line_bytes
            total, wrong = await asyncio.to_thread(check, self._path, batch.facts.endpoint, most)
        await (self._fail(wrong) if wrong else self._advance("validating", total=total))

    async def work(self) -> None:
        """Does what is left of the batch; returns early where the server stops, the claim is lost, lines wait for their
        next try, or the batch gives way. Without the input file the batch ends with the answers that it has. Raises
        Conflict where the claim is lost, NotFound where the batch is gone."""
        await self.validate()
        if self.batch.status == "validating":
            await self._advance("in_progress")
        if self.batch.status == "in_progress":
            await (self._answer_all() if self._has_input else self._advance("finalizing"))
        if self.batch.status in ("finalizing", "cancelling"):
            await self._finish()

    async def give_up(self) -> None:
        """Ends a batch that this service cannot work on, with the answers that it has; without files where they are
        what it cannot write."""
        try:
            await self._end("failed", DEFECT.code, [DEFECT])
            if self.batch.status == "cancelling":
                await self._end("cancelled", DEFECT.code, [DEFECT])
        except (DosirakError, RepositoryError, OSError):
            raise  # the database, the store or the disk: a later pass gives up again
        except Exception:
            log.exception("batch_output_failed", batch=self.batch.id)
            await self._fail([DEFECT])

    async def _fail(self, wrong: list[Wrong]) -> None:
        """Ends the batch: as failed, or as cancelled where its owner cancels it."""
        errors = [each.shown() for each in wrong]
        await self._advance("failed", errors=errors)
        if self.batch.status == "cancelling":
            await self._advance("cancelled", errors=errors)

    async def _answer_all(self) -> None:
        """Answers lines while there are some and there is time, then goes on to `finalizing`. It returns before where
        no line may begin until others have had their turn."""
        running = set[asyncio.Task[None]]()
        lines = self._unanswered()
        ahead: list[tuple[int, Line | Wrong]] = []
        is_read = False
        try:
            while not self._must_end():
                if not ahead and not is_read:
                    ahead = await asyncio.to_thread(lambda: list(islice(lines, READ_AHEAD)))
                    is_read = not ahead
                ahead[:0] = self._due()
                if ahead and self.room.is_full:
                    await self._keep([self._failed(number, line, NO_ROOM) for number, line in ahead])
                    ahead.clear()
                    continue
                may_begin = ahead and len(self._waiting) < MOST_WAITING and not self._means.gives_way()
                wait = self._means.wait_seconds(len(running)) if may_begin else LOOK_SECONDS
                if not wait:
                    running.add(asyncio.create_task(self._line(*ahead.pop(0))))
                elif not may_begin and not running:
                    break
                running = await self._after(wait, running)
        finally:
            await cancelled(running)
            await self._appended()
        is_done = self._is_late() or (is_read and not ahead and not self._waiting)
        if is_done and not (self._stopped or self._means.rests()) and self.batch.status == "in_progress":
            await self._advance("finalizing")

    def _due(self) -> list[tuple[int, Line | Wrong]]:
        """Takes the lines whose next try may begin."""
        now = time.monotonic()
        due = [number for number, (at, _) in self._waiting.items() if at <= now]
        return [(number, self._waiting.pop(number)[1]) for number in due]

    async def _after(self, seconds: float, running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Waits, less long where a line ends. Returns the tasks that go on; raises what a task has raised."""
        if not running:
            await asyncio.sleep(seconds)
            return running
        done, rest = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
        return rest

    def _is_late(self) -> bool:
        return self._means.now() >= self.batch.expires_at

    def _must_end(self) -> bool:
        return self._is_late() or self._stopped or self._means.rests() or self.batch.status != "in_progress"

    def _unanswered(self) -> Iterator[tuple[int, Line | Wrong]]:
        most = self._means.most_line_bytes
        for number, raw in numbered(self._path, most):
            if number not in self._journal:
                yield number, read(raw, number, most)

    async def _line(self, number: int, line: Line | Wrong) -> None:
        """Answers a line and keeps its answer. A response that a later request would not get is asked for again; a line
        that this server would not take any more fails."""
        if isinstance(line, Wrong):
            await self._keep([self._failed(number, line, line.shown())])
            return
        facts = self.batch.facts
        request = LineRequest(self.batch.owner, facts.endpoint, bytes(line.body), f"{self.batch.id}:{number}")
        reply = await self._means.answer(request)
        if reply.retry_after is not None and self._waits(number, line, reply.retry_after):
            return
        response = {"status_code": reply.status, "request_id": reply.request_id, "body": msgspec.Raw(reply.body)}
        entry = Entry(number, 200 <= reply.status < 300, self._output(number, line, response, None))
        await self._keep([entry if self.room.take(len(entry.output)) else self._failed(number, line, NO_ROOM)])

    def _waits(self, number: int, line: Line, retry_after: float) -> bool:
        """Puts a line back until its next try. Returns False after the last one."""
        self._tries[number] += 1
        tries = self._tries[number]
        if tries >= MOST_TRIES:
            return False
        pause = min(LONGEST_PAUSE_SECONDS, max(retry_after, 0.1 * 2 ** (tries - 1)))
        self._waiting[number] = time.monotonic() + pause, line
        return True

    def _failed(self, number: int, line: Line | Wrong, error: dict[str, Any]) -> Entry:
        return Entry(number, succeeded=False, output=self._output(number, line, None, error))

    async def _keep(self, entries: list[Entry]) -> None:
        """Keeps outputs, durably when it returns."""
        self._pending += entries
        async with self._writing:  # one write for all that ended during the one before
            await self._appended()
            if self._pending:
                taken, self._pending = self._pending, []
                self._appending = asyncio.create_task(asyncio.to_thread(self._journal.append, taken))
                await self._appended()
        for each in entries:
            self._means.observe("completed" if each.succeeded else "failed")

    async def _appended(self) -> None:
        """Waits for the thread that writes to the journal: it goes on when its line is cancelled, and one thread at a
        time uses a journal. Raises what the thread has raised."""
        if self._appending is not None:
            await asyncio.shield(self._appending)

    def _output(
        self, number: int, line: Line | Wrong, response: dict[str, Any] | None, error: dict[str, Any] | None
    ) -> bytes:
        id = f"batch_req_{_digest(self.batch.id, str(number))}"
        custom_id = line.custom_id if isinstance(line, Line) else None
        return self._means.encode({"id": id, "custom_id": custom_id, "response": response, "error": error})

    async def _finish(self) -> None:
        """Ends the batch. One that lacks answers and its input file has failed: nothing names the lines that are
        left."""
        has_all = sum(self.counts) == self.batch.facts.total
        left = "expired" if self._has_input else "failed"
        status = "cancelled" if self.batch.status == "cancelling" else "completed" if has_all else left
        code = "batch_cancelled" if status == "cancelled" else "batch_expired"
        await self._end(status, code, [] if has_all or self._has_input else [NO_INPUT])

    async def _end(self, status: str, code: str, wrong: list[Wrong]) -> None:
        """Writes the output files, with this code for lines without an answer, and ends the batch. Their ids come from
        the batch's, so that a second try makes no other files."""
        output = await self._file("output", lambda: (text for _, text in self._journal.outputs(succeeded=True)))
        errors = await self._file("error", lambda: self._errors(code))
        completed, failed = self.counts
        changes: dict[str, Any] = {"completed": completed, "failed": failed}
        changes |= {"output_file_id": output.id if output else None, "error_file_id": errors.id if errors else None}
        changes["errors"] = [each.shown() for each in wrong]
        files = [file for file in (output, errors) if file is not None]
        try:
            self.batch = await self._means.store.batches.end(self._claim, status, files, **changes)
        except NotFound:  # no row will ever name these contents
            for file in files:
                await self._means.files.forget(file.id, file.sha256)
            raise
        self._tell()

    def _errors(self, code: str) -> Iterator[bytes]:
        """Yields the lines of the error file: failed requests, then those that were not executed."""
        yield from (text for _, text in self._journal.outputs(succeeded=False))
        if self._has_input and sum(self.counts) < self.batch.facts.total:
            for number, line in self._unanswered():
                yield self._output(number, line, None, {"code": code, "message": UNANSWERED[code]})

    async def _file(self, kind: str, lines: Callable[[], Iterator[bytes]]) -> StoredFile | None:
        """Writes the content of an output file. Returns its row, which is not stored yet; None where the file would be
        empty."""
        id, files = f"file-{_digest(self.batch.id, kind)}", self._means.files
        size, sha256 = await asyncio.to_thread(lambda: files.contents.write(id, lines()))
        if not size:
            await files.forget(id, None)
            return None
        shared = await files.share(id, sha256)
        now = self._means.now()
        expires_at = now + timedelta(seconds=self.batch.facts.output_seconds)
        return StoredFile(id, OUTPUT, f"{self.batch.id}_{kind}.jsonl", size, now, expires_at, shared)

    async def _advance(self, status: str, **changes: Any) -> None:
        self.batch = await self._means.store.batches.advance(self._claim, status, **changes)
        self._tell()

    def _tell(self) -> None:
        facts = self.batch.facts
        counts = {"total": facts.total, "completed": facts.completed, "failed": facts.failed}
        log.info("batch", batch=self.batch.id, status=self.batch.status, endpoint=facts.endpoint, **counts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]
