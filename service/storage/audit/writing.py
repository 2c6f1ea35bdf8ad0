"""The audit of one server. What must not happen without a row is told first, and does not happen where the row cannot
be written. Other rows wait while the database is away. What was refused is counted, and told once a minute.

Each row that is written is also a line of the log, with its hash: an anchor that lies outside of the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from service.storage.audit import chain
from service.storage.audit.chain import Entry, Row
from service.tasks import Unbroken

if TYPE_CHECKING:
    from service.storage.audit.trail import Trail

WRITE_AUDIT: Final = "write_audit"
TOLD_SECONDS: Final = 60.0
MOST_COUNTED: Final = 200
"""Kinds of refusals that one minute tells apart; the others are one row."""
MOST_WAITING: Final = 10_000
"""Rows that wait for the database; those that come then are in the log only."""
SIGN_IN: Final = "sign-in"
PUBLISHING: Final = ("import", "quantize")
log = structlog.get_logger("dosirak.audit")
anchors = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
"""The log at every level: an anchor that `DOSIRAK_LOG_LEVEL` leaves out would anchor nothing."""


class Refusal(NamedTuple):
    """What was refused to whom."""

    action: str
    status: int
    subject: str = ""
    owner: str = ""
    name: str = ""
    peer: str = ""


class Audit:
    """The event loop owns this object. `trail` opens the database's; `told` gets, after each try, the number of the
    last row that was written, 0 before, and how many wait."""

    def __init__(
        self,
        trail: Callable[[], Awaitable[Trail]],
        instance: str,
        told: Callable[[int, int], None] = lambda number, waiting: None,
    ) -> None:
        self.trail = trail
        self._instance = instance
        self._told = told
        self._waiting: list[Entry] = []
        self._writes = Unbroken()
        self._refused: Counter[Refusal] = Counter()
        self._last = 0

    async def require(self, entry: Entry) -> None:
        """Writes a row now. Raises what the database raises: then there is no row, and nothing else may happen."""
        await self._writes.finish(self._write([entry]))

    async def add(self, entry: Entry) -> None:
        """Writes a row of what has happened; it waits where the database cannot have it now."""
        self._keep([entry])
        try:
            await self.write_waiting()
        except Exception as error:
            log.error("audit_row_waits", reason=type(error).__name__, **_fields(entry))

    def count(self, refusal: Refusal) -> None:
        """Counts what was refused."""
        is_new = refusal not in self._refused
        crowded = Refusal(refusal.action, refusal.status)
        self._refused[crowded if is_new and len(self._refused) >= MOST_COUNTED else refusal] += 1

    def wrong_key(self, status: int, peer: str) -> None:
        self.count(Refusal(SIGN_IN, status, peer=peer))

    async def follow(self) -> None:
        """Makes one pass: what was refused in this minute, and what waits, is written."""
        await asyncio.sleep(TOLD_SECONDS)
        await self.flush()

    async def flush(self) -> None:
        """Writes what was counted and what waits. Raises what the database raises; it all waits on then."""
        refused, self._refused = self._refused, Counter()
        self._keep([self._entry_of(refusal, times) for refusal, times in refused.items()])
        await self.write_waiting()

    async def close(self) -> None:
        """Writes what it can; the log has the rest."""
        await self._writes.ended()
        try:
            await self.flush()
        except Exception as error:
            for each in self._waiting:
                log.error("audit_row_lost", reason=type(error).__name__, **_fields(each))

    async def job_ended(self, kind: str, state: str, job: str, result: Mapping[str, object], author: str) -> None:
        """Tells the end of a job that was to publish a version."""
        if kind in PUBLISHING:
            subject = f"{result['model']}:{result['version']}" if "version" in result else ""
            outcome: chain.Outcome = "done" if state == "succeeded" else "failed"
            detail: dict[str, object] = {"job": job, "state": state, "digest": result.get("digest", "")}
            await self.add(self.entry(f"versions.{kind}", outcome, detail, subject=subject, owner=author))

    async def write_waiting(self) -> None:
        some, self._waiting = self._waiting, []
        if some:
            await self._writes.finish(self._write_or_keep(some))

    async def _write_or_keep(self, some: list[Entry]) -> None:
        try:
            await self._write(some)
        except Exception:
            self._waiting = some + self._waiting
            self._told(self._last, len(self._waiting))
            raise

    def entry(self, action: str, outcome: chain.Outcome, detail: dict[str, object], **texts: str) -> Entry:
        return chain.entry(action, outcome, detail, instance=self._instance, **texts)

    def _entry_of(self, refusal: Refusal, times: int) -> Entry:
        texts = refusal._asdict()
        detail = {"status": texts.pop("status"), "times": times}
        return self.entry(texts.pop("action"), "refused", detail, **texts)

    def _keep(self, entries: list[Entry]) -> None:
        room = MOST_WAITING - len(self._waiting)
        self._waiting += entries[:room]
        for entry in entries[room:]:
            log.error("audit_row_lost", **_fields(entry))

    async def _write(self, entries: list[Entry]) -> None:
        rows = await (await self.trail()).add(entries)
        for row in rows:
            anchors.info("audit", **_shown(row))
        self._last = max(self._last, rows[-1].number)
        self._told(self._last, len(self._waiting))


def _fields(entry: Entry) -> dict[str, str]:
    return {name: getattr(entry, name) for name in ("action", "outcome", "subject", "owner", "request_id", "detail")}


def _shown(row: Row) -> dict[str, object]:
    return {"number": row.number, "hash": row.hash, **_fields(row.entry)}
