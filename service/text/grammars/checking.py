"""A grammar checker tries each grammar once, in a process beside this one, before an engine gets it.

It remembers verdicts. It knows no requests, versions or vocabularies.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from service.errors import InvalidRequest, Overloaded
from service.text.grammars.grammar import Grammar
from service.text.recent import Recent

MODULE: Final = "service.text.grammars.trial"
_MOST_REMEMBERED: Final = 4096
_MOST_WAITING: Final = 64
_MOST_OF_OWNER: Final = 32
_MOST_TRIALS: Final = 2  # of one grammar, where the process ends: a process may have been killed since the last trial
_PATIENCE_SECONDS: Final = 20.0  # of one trial; its own limits end it long before


class GrammarChecker:
    """Owns the process that tries grammars. It lives in one event loop."""

    def __init__(self) -> None:
        self._known = Recent[bytes, str](_MOST_REMEMBERED)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._lines = WeakValueDictionary[str, asyncio.Lock]()
        """By owner: the first in each line waits for `_turn`, so owners take turns."""
        self._waiting = Counter[str]()

    async def check(self, grammar: Grammar, owner: str = "") -> None:
        """Raises InvalidRequest for a grammar that cannot be compiled within the limits, and Overloaded where too many
        wait for their trial, of this owner or of all."""
        key = hashlib.sha256(repr((grammar.trial, grammar.begun)).encode()).digest()
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = await self._tried(grammar, key, owner)
        if verdict:
            raise InvalidRequest(f"`{grammar.field}` cannot be followed: {verdict}", param=grammar.field)

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _tried(self, grammar: Grammar, key: bytes, owner: str) -> str:
        own, waiting = self._waiting[owner], self._waiting.total()
        if own >= _MOST_OF_OWNER or waiting >= _MOST_WAITING:
            raise Overloaded(f"{waiting} grammars wait for their trial; send the request again", retry_after=1)
        self._waiting[owner] += 1
        try:
            async with self._lines.setdefault(owner, asyncio.Lock()), self._turn:
                for _ in range(_MOST_TRIALS):
                    verdict = self._known.get(key)
                    if verdict is None:
                        verdict = await self._trial(grammar.trial, grammar.begun)
                    if verdict is not None:
                        return verdict
        finally:
            self._waiting[owner] -= 1
            self._waiting += Counter()  # without those that are 0
        raise Overloaded("The process that tries grammars was ended; send the request again", retry_after=1)

    async def _trial(self, *texts: str) -> str | None:
        """Returns the verdict; None where the process ended or says nothing, which is no fault of the grammar: its own
        process has limits."""
        bodies = [text.encode() for text in texts]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                reads, writes = await self._pipes()
                writes.writelines(len(body).to_bytes(4, "big") + body for body in bodies)
                await writes.drain()
                size = int.from_bytes(await reads.readexactly(4), "big")
                return (await reads.readexactly(size)).decode()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            await self.close()
            return None
        except asyncio.CancelledError:
            await self.close()  # the next trial must not read this one's verdict
            raise

    async def _pipes(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        return self._process.stdout, self._process.stdin
