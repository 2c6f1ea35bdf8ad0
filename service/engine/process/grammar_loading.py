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
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.sequences.constraint import Constraint, Grammars, Matcher, certain_tokens
from service.host import BESIDE_NICENESS

MOST_COMPILED: Final = 32
MOST_BYTES: Final = 8 << 20
"""Of the texts of compiled grammars that are kept. What a grammar takes beside its text has no measure: up to 20 MiB,
most of it what its sequences have learned."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A matcher at a grammar's start, not to be moved, and the tokens that are certain there."""

    matcher: Matcher
    certain: tuple[int, ...]


class CompiledGrammars:
    """Compiled grammars by their texts, those used last; None for one that cannot be compiled. Sequences share what a
    grammar has learned. Any thread may call it."""

    def __init__(self, grammars: Grammars | None) -> None:
        """`grammars` None: the model's tokenizer cannot follow any."""
        self._grammars = grammars
        self._compiled: OrderedDict[str, Compiled | None] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, text: str) -> bool:
        """Whether `constraint` would not have to compile it."""
        return self._grammars is None or text in self._compiled

    @property
    def num_bytes(self) -> int:
        """Of the texts that are kept."""
        return self._num_bytes

    def compile(self, text: str) -> Compiled:
        """Raises ValueError."""
        if self._grammars is None:
            raise ValueError("no grammars")
        with self._lock:
            is_known, compiled = text in self._compiled, self._compiled.get(text)
        if not is_known:
            with suppress(ValueError):
                matcher = self._grammars.compile(text)
                compiled = Compiled(matcher, tuple(certain_tokens(matcher)))
        self._keep(text, compiled)
        if compiled is None:
            raise ValueError("the grammar cannot be compiled")
        return compiled

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """Returns the constraint of a new sequence; None without a grammar. Raises ValueError."""
        text = params.grammar
        if not text:
            return None
        compiled = self.compile(text)
        assert self._grammars is not None
        matcher, certain = compiled.matcher.deep_copy(), compiled.certain
        if params.grammar_begun:
            if not matcher.consume_tokens(self._grammars.tokens(params.grammar_begun)):
                raise ValueError("the grammar does not begin so")
            certain = tuple(certain_tokens(matcher))
        return Constraint(
            matcher,
            self._grammars.end_id,
            params.stop_token_ids,
            certain,
            broke=partial(self._forget, text, compiled),
        )

    def _keep(self, text: str, compiled: Compiled | None) -> None:
        with self._lock:
            if text not in self._compiled:
                self._num_bytes += _size(text)
            self._compiled[text] = compiled
            self._compiled.move_to_end(text)
            while len(self._compiled) > 1 and (len(self._compiled) > MOST_COMPILED or self._num_bytes > MOST_BYTES):
                self._num_bytes -= _size(self._compiled.popitem(last=False)[0])

    def _forget(self, text: str, compiled: Compiled) -> None:
        """Its sequences may have learned so much that it can be followed no further: the next request compiles it
        again."""
        with self._lock:
            if self._compiled.get(text) is compiled:
                del self._compiled[text]
                self._num_bytes -= _size(text)


def _size(text: str) -> int:
    return len(text.encode())


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
        """Whether a grammar is being compiled."""
        return bool(self._waiting)

    def keeps(self, request: Request) -> bool:
        """Returns whether the request waits here for its grammar. `take` gives it back, also if compiling fails."""
        text = request.params.grammar
        if not text:
            return False
        if text not in self._waiting:
            if text in self._compiled:
                return False
            self._waiting[text] = []
            self._orders.put(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
                self._thread.start()
        self._waiting[text].append(request)
        return True

    def abort(self, request_ids: Collection[str]) -> list[Request]:
        """Removes the requests of these ids and returns them, without their grammars: they end without them."""
        ended = [each for waiting in self._waiting.values() for each in waiting if each.id in request_ids]
        for each in ended:
            self._waiting[each.params.grammar].remove(each)
        return [replace(each, params=replace(each.params, grammar="")) for each in ended]

    def take(self) -> Iterator[Request]:
        """Yields the requests whose grammars were compiled since the last call."""
        while self._done:
            yield from self._waiting.pop(self._done.popleft())

    def _run(self) -> None:
        os.nice(BESIDE_NICENESS)  # of this thread alone
        while True:
            text = self._orders.get()
            with suppress(Exception):  # then the core meets it, for each of the requests
                self._compiled.compile(text)
            self._done.append(text)
            self._wake()
