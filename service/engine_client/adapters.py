"""Which adapters an engine process is to have, and who waits for one to be there. Event loop only; sends nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from service.engine.messages import AdapterLoaded, LoadAdapter

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Wanted:
    """`answered` is why it could not be loaded, "" where it was; None for one that was there from the start."""

    frame: LoadAdapter
    answered: asyncio.Future[str] | None


class Adapters:
    """By name. A ticket tells the answer to one frame from that to another about the same name."""

    def __init__(self, known: Iterable[tuple[str, str]]) -> None:
        """`known`: (name, directory) of those that the first process loads before it is ready."""
        self._tickets = itertools.count()
        self._wanted = {name: _Wanted(self._frame(name, directory), None) for name, directory in known}

    def want(self, name: str, directory: str) -> LoadAdapter | None:
        """What the process must be told; None where it was told before."""
        if name in self._wanted:
            return None
        frame = self._frame(name, directory)
        self._wanted[name] = _Wanted(frame, asyncio.get_running_loop().create_future())
        return frame

    async def there(self, name: str) -> str:
        """Once it is known: why the adapter could not be loaded, or ""."""
        answered = self._wanted[name].answered
        return await asyncio.shield(answered) if answered else ""

    def drop(self, name: str, why: str) -> None:
        wanted = self._wanted.pop(name, None)
        if wanted is not None:
            _answer(wanted, why)

    def take(self, message: AdapterLoaded) -> None:
        """The process's answer to a frame."""
        wanted = self._wanted.get(message.name)
        if wanted is None or wanted.frame.ticket != message.ticket:
            return
        if message.error:
            _logger.warning("adapter %s could not be loaded: %s", message.name, message.error)
            self.drop(message.name, message.error)
        else:
            _answer(wanted, "")

    def frames(self) -> list[LoadAdapter]:
        """What a new process must be told."""
        return [wanted.frame for wanted in self._wanted.values()]

    def fail(self, why: str) -> None:
        """The engine is at its end: whoever waits is told."""
        for wanted in self._wanted.values():
            _answer(wanted, why)

    def _frame(self, name: str, directory: str) -> LoadAdapter:
        return LoadAdapter(name, directory, next(self._tickets))


def _answer(wanted: _Wanted, why: str) -> None:
    if wanted.answered is not None and not wanted.answered.done():
        wanted.answered.set_result(why)
