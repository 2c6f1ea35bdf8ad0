"""An opening tells how far a stream has come before its first token: enough to send the headers of its response."""

from __future__ import annotations

import asyncio

from service.answers.answer import Answer


class Opening:
    """Of one stream, however many requests it has: the first of them to come so far speaks for all."""

    def __init__(self) -> None:
        self.is_loaded = False
        """The version that answers is in memory: what the prompt still waits for is short."""
        self.answer: Answer | None = None
        """From its beginning on: its version and its prompt are known."""
        self._begun = asyncio.Event()

    def begin(self, answer: Answer) -> None:
        self.answer = self.answer or answer
        self._begun.set()

    async def begun(self) -> None:
        await self._begun.wait()
