"""The sandbox is Jinja's immutable sandbox with bounds on time and size. It knows template code: no chats, no tokens.

Jinja's sandbox stops escapes, not bombs: `'a' * 200_000_000` is one expression. This sandbox bounds CPU time at every
loop turn, call and filter. Before a value is built, it bounds the size of `+ * ** % ~`, captured blocks, padding,
replacing, joining, formatting and of containers turned into text.
"""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from time import thread_time
from typing import cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

Value = object
_BASE_CHARACTERS = 64 * 1024
_CHARACTERS_PER_INPUT = 8
_BASE_SECONDS = 0.25
_SECONDS_ON_LOOP = 0.05
_SECONDS_PER_INPUT = 5e-7
_INTEGER_BITS = 4096
_WIDTH = re.compile(r"\d{5,}|\*")
_REMOVED = ("urlize", "xmlattr", "pprint")
_STRUCTURAL = re.compile(
    "attr|batch|count|d|default|dictsort|first|groupby|items|last|length|list|map|max|min|random|reject|rejectattr|"
    "reverse|select|selectattr|slice|sort|sum|unique"
)
"""Filters that pass values on without turning them into text."""


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
        self._until = _used() + seconds
        self._error = error
        self._ticks = 0

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

    def join(self, pieces: Iterable[str]) -> str:
        """Joins while counting, so that an endless template is stopped while it writes."""
        size, parts = 0, []
        for piece in pieces:
            self.tick()
            size += len(piece)
            self.require(size)
            parts.append(piece)
        return "".join(parts)

    def weigh(self, value: Value) -> None:
        """Refuses containers with too long a text. Nested lists may share parts and grow exponentially."""
        size, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            size += len(item) if isinstance(item, str | bytes) else 1
            self.require(size)
            if isinstance(item, Mapping):
                waiting += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                waiting += item


_current: ContextVar[Budget | None] = ContextVar("template_budget", default=None)


def _budget() -> Budget:
    """Returns the running rendering's budget, or a small one while a template is compiled (constant folding)."""
    return _current.get() or Budget(_BASE_CHARACTERS, _BASE_SECONDS)


class _Generator(CodeGenerator):
    """Generates code in which `a ~ b` goes through the environment, like the interceptable operators. Looks at the
    clock call the environment directly."""

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        if node.node is _LOOK:
            self.writeline("environment.tick()", node)
        else:
            super().visit_ExprStmt(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")


_LOOK = nodes.EnvironmentAttribute("tick")
"""Marks the statement with which `_parse` adds a look at the clock. No template can write it."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Raises TooMuch from inside a rendering (see `Budget`)."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Value) -> None:
        super().__init__(finalize=self._finalize, **options)
        for name in _REMOVED:
            del self.filters[name]
        self.bound_filters(dict(self.filters))

    def bound_filters(self, filters: Mapping[str, Callable[..., Value]]) -> None:
        """Adds `filters`, each checked at every call."""
        self.filters.update({name: _bounded_filter(name, function) for name, function in filters.items()})

    def tick(self) -> None:
        _budget().tick()

    def concat(self, pieces: Iterable[Value]) -> str:
        texts = [piece if isinstance(piece, str) else str(self._finalize(piece)) for piece in pieces]
        _budget().require(sum(map(len, texts)))
        return "".join(texts)

    def _finalize(self, value: Value) -> Value:
        if not isinstance(value, str):
            _budget().weigh(value)
        return value

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parses a template so that every turn of a loop and every macro call begins with a look at the clock."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(_LOOK).set_lineno(loop.lineno))
        for macro in tree.find_all(nodes.Macro):
            macro.body.insert(0, nodes.ExprStmt(_LOOK).set_lineno(macro.lineno))
        return tree

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        budget = _budget()
        if operator == "+" and type(left) is str and type(right) is str:  # the most frequent operation, and no loop
            budget.require(len(left) + len(right))
            return left + right
        budget.tick()
        _check_operator(budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Value, *args: Value, **kwargs: Value) -> Value:
        budget = _budget()
        budget.tick()
        _check_integers(budget, (*args, *kwargs.values()))
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            args = _check_method(budget, owner, str(getattr(method, "__name__", "")), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _check_operator(budget: Budget, operator: str, left: Value, right: Value) -> None:
    sizes = [len(value) for value in (left, right) if isinstance(value, str | bytes | list | tuple)]
    integers = [abs(value) for value in (left, right) if isinstance(value, int)]
    if operator == "%" and isinstance(left, str):
        _check_format(budget, left, right)
    elif operator == "*" and sizes and integers:
        budget.require(sizes[0] * integers[0])
    elif operator == "+" and len(sizes) == 2:
        budget.require(sum(sizes))
    elif len(integers) == 2:
        first, second = (value.bit_length() for value in integers)
        if (first * integers[1] if operator == "**" else first + second) > _INTEGER_BITS:
            raise TooMuch("computes with too large numbers")


def _check_integers(budget: Budget, values: Iterable[Value]) -> None:
    """Refuses widths and counts beyond the text limit, which no honest template needs."""
    for value in values:
        if isinstance(value, int):
            budget.require(abs(value))


def _check_format(budget: Budget, pattern: str, arguments: Value) -> None:
    if _WIDTH.search(pattern):
        raise TooMuch("formats too wide a text")
    fields = pattern.count("%") + pattern.count("{")
    budget.weigh([arguments] * max(1, fields))
    budget.require(9999 * fields if re.search(r"\d{3,}", pattern) else 0)


def _replaced(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * len(new)


def _check_method(
    budget: Budget, owner: str | bytes, name: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]
) -> tuple[Value, ...]:
    """Refuses calls whose result would be too long. Returns the arguments, iterators as lists."""
    if isinstance(owner, bytes) or name == "translate":
        raise TooMuch("works on bytes or character tables")
    if name in ("format", "format_map"):
        _check_format(budget, owner, [*args, dict(kwargs)])
    elif name == "replace" and len(args) >= 2:
        budget.require(_replaced(owner, str(args[0]), str(args[1])))
    elif name == "expandtabs":
        budget.require(len(owner) * max([8, *(value for value in (*args, *kwargs.values()) if isinstance(value, int))]))
    elif name == "join" and args:
        return (_check_join(budget, args[0], owner), *args[1:])
    return args


def _check_join(budget: Budget, items: Value, separator: str) -> list[Value]:
    parts = list(cast("Iterable[Value]", items))
    budget.weigh(parts)
    budget.require(len(separator) * len(parts))
    return parts


def _bounded_filter(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def bounded(*args: Value, **kwargs: Value) -> Value:
        budget = _budget()
        budget.tick()
        values = args[skip:]
        _check_integers(budget, (*values[1:], *kwargs.values()))
        _check_filter(budget, name, values, kwargs)
        return function(*args, **kwargs)

    return bounded


def _check_filter(budget: Budget, name: str, values: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    if not values:
        return
    others = [*values[1:], *kwargs.values()]
    if _STRUCTURAL.fullmatch(name):
        if name == "sum" and any(isinstance(value, list | tuple) for value in others):
            raise TooMuch("sums up lists")
        return
    if not isinstance(values[0], str | int | float):
        budget.weigh(values[0])
    if name == "format":
        _check_format(budget, str(values[0]), others)
    elif name == "replace" and len(values) >= 3:
        budget.require(_replaced(str(values[0]), str(values[1]), str(values[2])))
    elif name in ("indent", "wordwrap", "join", "tojson"):
        _check_inserted(budget, values[0], others)


def _check_inserted(budget: Budget, value: Value, inserted: Sequence[Value]) -> None:
    """Checks filters that put one given text (or a number of spaces) between parts, at most once per character or
    item."""
    width = sum(len(item) if isinstance(item, str) else item for item in inserted if isinstance(item, str | int))
    places = value.count("\n") + 1 if isinstance(value, str) else len(value) if isinstance(value, list | tuple) else 1
    budget.require(width * places)
