"""Compiled grammars of an engine, and a thread that compiles them beside the steps. Requests wait here meanwhile.

It knows texts of grammars only as keys. It knows no socket.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Final

from service.engine.constraint import Constraint, Grammars, Matcher
from service.engine.messages import Request, SamplingParams

_MOST_BYTES: Final = 8 << 20
"""Of the texts of compiled grammars that are kept."""
_NICENESS: Final = 5  # running answers first


class CompiledGrammars:
    """Compiled grammars by their texts, those used last. Sequences share what a grammar has learned. Any thread may
    call it."""

    def __init__(self, grammars: Grammars | None) -> None:
        """`grammars` None: the model's tokenizer cannot follow any."""
        self._grammars = grammars
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, text: str) -> bool:
        return text in self._compiled

    def compile(self, text: str) -> Matcher:
        """Returns the matcher at a grammar's start, not to be moved. Raises ValueError."""
        if self._grammars is None:
            raise ValueError("no grammars")
        with self._lock:
            found = self._compiled.pop(text, None)
        if found is None:
            found = self._grammars.compile(text)
        with self._lock:
            self._compiled[text] = found
            while sum(map(len, self._compiled)) > _MOST_BYTES and len(self._compiled) > 1:
                self._compiled.popitem(last=False)
        return found

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """Returns the constraint of a new sequence; None without a grammar. Raises ValueError."""
        if not params.grammar:
            return None
        matcher = self.compile(params.grammar)
        assert self._grammars is not None
        return Constraint(matcher.deep_copy(), self._grammars.end_id, params.stop_token_ids)


class GrammarLoader:
    """Compiles one grammar after the other. The engine's thread does everything but the compiling."""

    def __init__(self, compiled: CompiledGrammars, wake: Callable[[], None]) -> None:
        """A thread calls `wake` after each compilation."""
        self._compiled = compiled
        self._wake = wake
        self._waiting: dict[str, list[Request]] = {}
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: deque[str] = deque()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether requests wait for a grammar."""
        return bool(self._waiting)

    def keeps(self, request: Request) -> bool:
        """Returns whether the request waits here for its grammar. `take` gives it back, also if compiling fails."""
        text = request.params.grammar
        if not text or text in self._compiled:
            return False
        if text not in self._waiting:
            self._waiting[text] = []
            self._orders.put(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
                self._thread.start()
        self._waiting[text].append(request)
        return True

    def abort(self, request_ids: Collection[str]) -> list[Request]:
        """Removes the requests of these ids and returns them."""
        ended = [each for waiting in self._waiting.values() for each in waiting if each.id in request_ids]
        for each in ended:
            self._waiting[each.params.grammar].remove(each)
        return ended

    def take(self) -> Iterator[Request]:
        """Yields the requests whose grammars were compiled since the last call."""
        while self._done:
            yield from self._waiting.pop(self._done.popleft())

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            text = self._orders.get()
            with suppress(ValueError):  # then the core refuses the requests, one by one
                self._compiled.compile(text)
            self._done.append(text)
            self._wake()
