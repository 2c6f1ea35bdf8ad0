"""An adapter loader loads adapters beside the steps: a thread reads the files, and the engine's thread attaches them.

Requests for an adapter wait here while it loads. The loader knows no socket.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable

from service.engine.protocol.messages import LoadAdapter, Request
from service.host import BESIDE_NICENESS

Attach = Callable[[], None]
"""Makes a loaded adapter part of the model, between two steps. Raises the error that stops it."""


class AdapterLoader:
    """Loads one adapter after the other. The engine's thread does everything but the reading."""

    def __init__(self, read: Callable[[str, str], Attach], wake: Callable[[], None]) -> None:
        """`read(name, directory)` is called in a thread. The same thread calls `wake` after each read."""
        self._read = read
        self._wake = wake
        self._current: dict[str, LoadAdapter] = {}
        self._waiting: dict[str, list[Request]] = {}
        self._orders: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._done: deque[tuple[LoadAdapter, Attach | str]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a wanted adapter is being read, or was read and is not taken yet."""
        return bool(self._current)

    def load(self, order: LoadAdapter) -> None:
        """Reads an adapter. An earlier order for the same name is void."""
        self._current[order.name] = order
        self._orders.put(order)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
            self._thread.start()

    def forget(self, name: str) -> list[Request]:
        """Drops an adapter that is not wanted any more. Returns the requests that waited for it."""
        self._current.pop(name, None)
        return self._waiting.pop(name, [])

    def keeps(self, request: Request) -> bool:
        """Returns whether the request waits here for its adapter. `take` or `forget` gives the request back."""
        if request.adapter not in self._current:
            return False
        self._waiting.setdefault(request.adapter, []).append(request)
        return True

    def abort(self, request_ids: Collection[str]) -> list[Request]:
        """Removes the requests of these ids and returns them."""
        ended = [each for waiting in self._waiting.values() for each in waiting if each.id in request_ids]
        for each in ended:
            self._waiting[each.adapter].remove(each)
        return ended

    def take(self) -> Iterable[tuple[LoadAdapter, Attach | str, list[Request]]]:
        """Yields each order that was read and is not void, with the call that attaches the adapter (or the reason of a
        failure) and the requests that waited for it."""
        while self._done:
            order, read = self._done.popleft()
            if self._current.get(order.name) is order:
                yield order, read, self.forget(order.name)

    def _run(self) -> None:
        os.nice(BESIDE_NICENESS)  # of this thread alone
        while True:
            order = self._orders.get()
            try:
                read: Attach | str = self._read(order.name, order.directory)
            except Exception as error:  # a bad adapter fails its own deployment, not the engine
                read = describe(error)
            self._done.append((order, read))
            self._wake()


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
