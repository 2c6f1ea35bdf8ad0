"""The loading of adapters beside the steps: a thread reads the files, and the engine's thread attaches what was read.

Knows no socket. Requests for an adapter that is being loaded wait here.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from service.engine.messages import LoadAdapter, Request

Attach = Callable[[], None]
"""Makes an adapter that was read part of the model; between two steps. Raises what stops it."""

_NICENESS: Final = 10  # running answers first


class AdapterLoader:
    """One adapter after the other. Everything but the reading is the engine thread's."""

    def __init__(self, read: Callable[[str, str], Attach], wake: Callable[[], None]) -> None:
        """`read(name, directory)` is called in a thread, and `wake` there when something was read."""
        self._read = read
        self._wake = wake
        self._current: dict[str, LoadAdapter] = {}
        self._waiting: dict[str, list[Request]] = {}
        self._orders: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._done: deque[tuple[LoadAdapter, Attach | str]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an adapter that is still wanted is being read, or was read and not taken."""
        return bool(self._current)

    def load(self, order: LoadAdapter) -> None:
        """Read an adapter; an earlier order for the same name is void."""
        self._current[order.name] = order
        self._orders.put(order)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
            self._thread.start()

    def forget(self, name: str) -> list[Request]:
        """The adapter is not wanted any more; the requests that waited for it."""
        self._current.pop(name, None)
        return self._waiting.pop(name, [])

    def keeps(self, request: Request) -> bool:
        """Whether the request waits here for its adapter, until `take` or `forget` gives it back."""
        if request.adapter not in self._current:
            return False
        self._waiting.setdefault(request.adapter, []).append(request)
        return True

    def abort(self, request_ids: Collection[str]) -> list[Request]:
        """The requests of these ids that waited here, and do not any more."""
        ended = [each for waiting in self._waiting.values() for each in waiting if each.id in request_ids]
        for each in ended:
            self._waiting[each.adapter].remove(each)
        return ended

    def take(self) -> Iterable[tuple[LoadAdapter, Attach | str, list[Request]]]:
        """Each order that was carried out and is not void: what attaches the adapter, or why it could not be read, and
        the requests that waited for it."""
        while self._done:
            order, read = self._done.popleft()
            if self._current.get(order.name) is order:
                yield order, read, self.forget(order.name)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            order = self._orders.get()
            try:
                read: Attach | str = self._read(order.name, order.directory)
            except Exception as error:  # a bad adapter is its own deployment's trouble, not the engine's
                read = describe(error)
            self._done.append((order, read))
            self._wake()


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
