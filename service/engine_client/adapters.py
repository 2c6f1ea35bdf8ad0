"""The adapters that an engine process is to have, and the callers that wait for one to be loaded.

Lives in the event loop; sends nothing itself.
"""

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
    """An adapter that is to be loaded. `answered` becomes the reason why it could not be, "" where it was loaded; None
    for an adapter of the first process's configuration."""

    frame: LoadAdapter
    answered: asyncio.Future[str] | None


class Adapters:
    """Adapters by name. The process may be asked for one name several times: its answers carry the ticket of their
    question."""

    def __init__(self, known: Iterable[tuple[str, str]]) -> None:
        """`known`: (name, directory) of the adapters that the first process loads before it is ready."""
        self._tickets = itertools.count()
        self._wanted = {name: _Wanted(self._frame(name, directory), None) for name, directory in known}

    def want(self, name: str, directory: str) -> LoadAdapter | None:
        """The frame that the process must be sent; None where it was sent before."""
        if name in self._wanted:
            return None
        frame = self._frame(name, directory)
        self._wanted[name] = _Wanted(frame, asyncio.get_running_loop().create_future())
        return frame

    async def there(self, name: str) -> str:
        """Waits for the answer: why the adapter could not be loaded, or "". The caller bounds the wait."""
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
        """The frames that a new process must be sent."""
        return [wanted.frame for wanted in self._wanted.values()]

    def fail(self, why: str) -> None:
        """The engine has ended: every caller that waits gets this reason."""
        for wanted in self._wanted.values():
            _answer(wanted, why)

    def _frame(self, name: str, directory: str) -> LoadAdapter:
        return LoadAdapter(name, directory, next(self._tickets))


def _answer(wanted: _Wanted, why: str) -> None:
    if wanted.answered is not None and not wanted.answered.done():
        wanted.answered.set_result(why)
