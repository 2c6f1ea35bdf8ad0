"""A budget is what one rendering may take: processor time, the size of a value, and the size of all that is built.

The size of a value is about that of its text. Each part counts as often as it comes, and one more:

    [["a"], ["a"]]               1 + (1 + 2) + (1 + 2) = 7, also where both inner lists are one
    ["a"], 60 times [x, x]       too large at the 15th: what writes, compares or hashes it visits each part

It knows no templates.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from time import thread_time
from types import MappingProxyType
from typing import Final, cast

Value = object
_EMPTY: Final = dict[Value, Value]()
_ITEMS: Final = cast("type[Iterable[tuple[Value, Value]]]", type(_EMPTY.items()))
CONTAINERS: Final = cast("tuple[type[Collection[Value]], ...]", (
    list, tuple, dict, set, frozenset, MappingProxyType, type(_EMPTY.keys()), type(_EMPTY.values()), _ITEMS,
))  # fmt: skip
"""What holds values that a comparison, a hash or a text visits."""
INTEGER_BITS: Final = 4096
_BASE_CHARACTERS = 64 * 1024
_CHARACTERS_PER_INPUT = 8
_ALL_PER_VALUE: Final = 128
"""All that one rendering builds may be so many times as large as one value. A template that adds each message to one
long text builds that text's half at each step."""
_CONTAINER: Final = 128
_ITEM: Final = 16
"""What a container and each of its items take of memory, in characters."""
_MOST_REMEMBERED: Final = 1 << 18
"""Items of the containers whose sizes are remembered, so that a rendering keeps few of them alive."""
_BASE_SECONDS = 0.25
_SECONDS_ON_LOOP = 0.05
_SECONDS_PER_INPUT = 5e-7


_collected = threading.local()


def _note_collection(phase: str, info: Mapping[str, int]) -> None:
    """Measures garbage collection. The thread that made the last object collects for the whole process."""
    if phase == "start":
        _collected.since = thread_time()
    elif (since := getattr(_collected, "since", None)) is not None:
        _collected.seconds = getattr(_collected, "seconds", 0.0) + thread_time() - since


gc.callbacks.append(_note_collection)


def _is_on_event_loop() -> bool:
    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


def _used() -> float:
    """Returns this thread's CPU seconds without the garbage collector's."""
    return thread_time() - getattr(_collected, "seconds", 0.0)


class TooMuch(Exception):
    """A bound was passed. The message continues "The template …"."""


class TookLong(Exception):
    """Renderings took longer than they may where they were tried; they may take longer in a thread."""


class _Allowance:
    """What is left of the time of several renderings, and what is raised at its end."""

    def __init__(self, seconds: float, error: type[Exception]) -> None:
        self.seconds, self.error = seconds, error


_allowance: ContextVar[_Allowance | None] = ContextVar("template_allowance", default=None)


@contextmanager
def renderings_within(seconds: float, error: type[Exception] = TooMuch) -> Iterator[None]:
    """All renderings inside take so many seconds of processor time together, or raise `error`. Each keeps its own
    budget."""
    token = _allowance.set(_Allowance(seconds, error))
    try:
        yield
    finally:
        _allowance.reset(token)


def seconds_for(characters: int) -> float:
    """Returns how long a rendering of so many characters may take: 250 ms + 0.5 µs for each."""
    return _BASE_SECONDS + _SECONDS_PER_INPUT * characters


class Budget:
    """The limits of one rendering, in one thread."""

    def __init__(self, characters: int, seconds: float, error: type[Exception] = TooMuch) -> None:
        self._characters = characters
        self._left = characters * _ALL_PER_VALUE
        self._until = _used() + seconds
        self._error = error
        self._ticks = 0
        self._sizes: dict[int, tuple[Value, int]] = {}
        """The size of each container by its id, beside the container: its id is no other's as long as it is here."""
        self._remembered = 0

    @classmethod
    @contextmanager
    def for_input(cls, characters: int) -> Iterator[Budget]:
        """Sets the budget of a rendering: 8 times the input + 64 KiB of text, and `seconds_for` it of CPU time; what is
        left for all, where that is less, and 50 ms on an event loop that set nothing for all."""
        own, shared = seconds_for(characters), _allowance.get()
        seconds: float = own
        error: type[Exception] = TooMuch
        if shared is None and _is_on_event_loop():
            seconds = _SECONDS_ON_LOOP
        if shared is not None and shared.seconds < own:
            seconds, error = shared.seconds, shared.error
        begun = _used()
        budget = cls(_BASE_CHARACTERS + _CHARACTERS_PER_INPUT * characters, seconds, error)
        token = _current.set(budget)
        try:
            yield budget
        finally:
            _current.reset(token)
            if shared is not None:
                shared.seconds -= _used() - begun

    def tick(self) -> None:
        """Looks at the clock at every eighth call, because a look takes longer than the template's work between
        calls."""
        self._ticks += 1
        if self._ticks % 8 == 1:
            self.look()

    def look(self) -> None:
        if _used() > self._until:
            raise self._error("takes too long")

    def require(self, size: int) -> None:
        if size > self._characters:
            raise TooMuch("writes too much text")

    def build(self, size: int) -> None:
        """Counts what is built: it may be kept until the end."""
        self._left -= size
        if size > self._characters or self._left < 0:
            self.require(size)
            raise TooMuch("builds too much text in all")

    def join(self, pieces: Iterable[str]) -> str:
        """Joins while counting, so that an endless template is stopped while it writes."""
        size, parts = 0, []
        for piece in pieces:
            self.tick()
            size += len(piece)
            self.require(size)
            parts.append(piece)
        return "".join(parts)

    def weigh(self, value: Value) -> int:
        """Returns the size of a value. Raises TooMuch where it is too large."""
        if isinstance(value, str | bytes):
            size = 1 + len(value)
        elif isinstance(value, int):
            size = 1 + value.bit_length() // 3
        elif isinstance(value, CONTAINERS):
            known = self._sizes.get(id(value))
            return known[1] if known else self.remember(value, 1 + self.weigh_all(_parts(value)))
        else:
            return 1
        self.require(size)
        return size

    def weigh_all(self, values: Iterable[Value]) -> int:
        """Returns the size of values that are together in one place. Raises TooMuch where it is too large."""
        size = 0
        for value in values:
            size += 1 + len(value) if isinstance(value, str) else self.weigh(value)
        self.require(size)
        return size

    def require_arguments(self, values: Iterable[Value]) -> None:
        """Raises TooMuch for widths and counts beyond the text limit, which no honest template needs, and where the
        containers among the arguments of a call are too large together."""
        size = 0
        for value in values:
            if isinstance(value, str):
                continue
            if isinstance(value, int):
                self.require(abs(value))
            elif isinstance(value, CONTAINERS):
                size += self.weigh(value)
        if size:
            self.require(size)

    def add(self, value: Value) -> None:
        """Counts a value that was built, and weighs it where it is a container."""
        if isinstance(value, str):
            self.build(len(value))
        elif isinstance(value, int):
            if value.bit_length() > INTEGER_BITS:
                raise TooMuch("computes with too large numbers")
        else:
            self.weigh(value)
            self.count(value)

    def count(self, value: Value) -> None:
        """Counts a text or a container that was built, of parts that were weighed."""
        if isinstance(value, str | bytes):
            self.build(len(value))
        elif isinstance(value, CONTAINERS):
            self._left -= _CONTAINER + _ITEM * len(value)
            self.build(0)

    def remember(self, container: Collection[Value], size: int) -> int:
        """Notes the size of a container, and returns it. Raises TooMuch where it is too large."""
        self.require(size)
        self._remembered += 1 + len(container)
        if self._remembered > _MOST_REMEMBERED:
            self._sizes.clear()
            self._remembered = 0
        self._sizes[id(container)] = (container, size)
        return size


def _parts(container: Collection[Value]) -> Iterable[Value]:
    if isinstance(container, dict | MappingProxyType):
        return chain(container.keys(), container.values())
    if isinstance(container, _ITEMS):
        return chain.from_iterable(container)
    return container


_current: ContextVar[Budget | None] = ContextVar("template_budget", default=None)


def tick() -> None:
    """Looks at the running rendering's clock, as `Budget.tick` does."""
    budget = _current.get()
    if budget is not None:
        budget.tick()


def current() -> Budget:
    """Returns the running rendering's budget, or a small one while a template is compiled (constant folding)."""
    return _current.get() or Budget(_BASE_CHARACTERS, _BASE_SECONDS)
