"""An opening records how far a stream has come before its first token: far enough to send the headers of its
response."""

from __future__ import annotations

import asyncio

from service.answers.answer import Answer


class Opening:
    """One stream has one opening, however many requests it has: the request that gets this far first sets it for
    all."""

    def __init__(self) -> None:
        self.is_loaded = False
        """The version that answers is in memory: the prompt will be ready soon."""
        self.answer: Answer | None = None
        """The answer, once its version and its prompt are known."""
        self._begun = asyncio.Event()

    def begin(self, answer: Answer) -> None:
        self.answer = self.answer or answer
        self._begun.set()

    async def begun(self) -> None:
        await self._begun.wait()
