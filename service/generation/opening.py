"""An opening records which answers of a request have begun: before its first token a stream then knows the headers of
its response."""

from __future__ import annotations

import asyncio

from service.generation.answer import Answer


class Opening:
    """One response has one opening, however many requests it has: the request that gets this far first sets it for
    all."""

    def __init__(self) -> None:
        self.is_loaded = False
        """The version that answers is in memory: the prompt will be ready soon."""
        self.answers: list[Answer] = []
        """The answers that have begun, in the order in which they did: their versions and prompts are known."""
        self._begun = asyncio.Event()

    def begin(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._begun.set()

    @property
    def answer(self) -> Answer | None:
        """Returns the answer that began first."""
        return self.answers[0] if self.answers else None

    async def begun(self) -> None:
        await self._begun.wait()
