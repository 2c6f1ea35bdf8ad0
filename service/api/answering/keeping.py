"""A keeper stores what a dialect keeps of an answer, before the last bytes of the response go out: no client reads an
end that is not stored. An answer with an Idempotency-Key is kept by its recorder instead, together with the key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.generation.answer import Answer, Delta
from service.storage.sessions import StoredAnswer

if TYPE_CHECKING:
    from service.storage.sessions import StoredAnswers

Write = Callable[[Delta], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Keep:
    """Where answers are kept, and as whose. `row` returns what is kept of an answer whose response is written."""

    stored: StoredAnswers
    owner: str
    row: Callable[[Answer], StoredAnswer]


class Keeper:
    """The keeper of one request's response. `write` writes the response."""

    def __init__(self, write: Write, keep: Keep) -> None:
        self._write = write
        self._keep = keep
        self._last: list[bytes] | None = None

    def write(self, delta: Delta) -> Iterable[bytes]:
        """Returns the bytes of a delta; those of the last one are made once."""
        if not delta.last:
            return self._write(delta)
        if self._last is None:
            self._last = list(self._write(delta))
        return self._last

    async def deltas(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of `source`, which it owns; the last one once the answer is stored."""
        async with aclosing(source):
            async for delta in source:
                if delta.last:
                    self.write(delta)
                    await self._keep.stored.add(self._keep.owner, self._keep.row(delta.answer))
                yield delta
