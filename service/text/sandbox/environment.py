"""The environment compiles templates into code that asks a budget before it builds something, and at each step.

Jinja's sandbox stops escapes, not bombs: `'a' * 200_000_000` is one expression. This sandbox bounds CPU time at every
loop turn, call, filter and comparison. Before a value is built, it bounds the size of `+ * ** % ~`, captured blocks,
padding, replacing, joining, formatting and of containers turned into text. Each container is weighed when it is built:
so no operation of Python that visits all parts of one takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import GeneratorType
from typing import TypeVar, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from service.text.sandbox.budget import Budget, Value, current, tick
from service.text.sandbox.checks import check_filter, check_method, check_operator

_REMOVED = ("urlize", "wordwrap", "xmlattr", "pprint")
_MAKING = ("batch", "items", "slice")
"""Filters that make containers one by one."""
_COMPARING = (
    *("eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=", "gt", ">", "greaterthan", "ge", ">="),
    "in",
)
"""Tests that compare values, as the operators do."""
_Built = TypeVar("_Built")


class _Generator(CodeGenerator):
    """Generates code in which `a ~ b`, new containers and slices go through the environment, like the interceptable
    operators. Looks at the clock call the environment directly."""

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

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        with self._inside("(environment.tick() or " if _visits_much(node) else "("):
            super().visit_Compare(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        with self._inside("(" if _is_constant(node) else "environment.added("):
            super().visit_List(node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        with self._inside("(" if node.ctx != "load" or _is_constant(node) else "environment.added("):
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        with self._inside("environment.added("):
            super().visit_Dict(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        with self._inside("environment.sliced(" if isinstance(node.arg, nodes.Slice) else "("):
            super().visit_Getitem(node, frame)

    @contextmanager
    def _inside(self, opening: str) -> Iterator[None]:
        """Writes the code inside between parentheses, the first of them in `opening`."""
        self.write(opening)
        yield
        self.write(")")


def _visits_much(node: nodes.Compare) -> bool:
    """Whether a comparison may visit all parts of two large values: not where one is written in the template, but for
    the container of `in`."""
    first, *others = node.ops
    is_search = first.op in ("in", "notin")
    return bool(others) or not (_is_constant(first.expr) or (_is_constant(node.expr) and not is_search))


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(each, nodes.Const) for each in node.items)
    return isinstance(node, nodes.Const)


_LOOK = nodes.EnvironmentAttribute("tick")
"""Marks the statement with which `_parse` adds a look at the clock. No template can write it."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Raises TooMuch from inside a rendering (see `Budget`)."""

    code_generator_class = _Generator
    tick = staticmethod(tick)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Value) -> None:
        super().__init__(finalize=self._finalize, **options)
        for name in _REMOVED:
            del self.filters[name]
        self.bound_filters(dict(self.filters))
        self.tests.update({name: _ticking(cast("Callable[..., bool]", self.tests[name])) for name in _COMPARING})

    def bound_filters(self, filters: Mapping[str, Callable[..., Value]]) -> None:
        """Adds `filters`, each checked at every call."""
        self.filters.update({name: _bounded_filter(name, function) for name, function in filters.items()})

    def added(self, value: _Built) -> _Built:
        """Counts a new container, and returns it."""
        current().add(value)
        return value

    def sliced(self, value: _Built) -> _Built:
        """Counts a part of a value, and returns it."""
        current().count(value)
        return value

    def concat(self, pieces: Iterable[Value]) -> str:
        texts = [piece if isinstance(piece, str) else str(self._finalize(piece)) for piece in pieces]
        current().build(sum(map(len, texts)))
        return "".join(texts)

    def _finalize(self, value: Value) -> Value:
        if not isinstance(value, str):
            current().weigh(value)
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
        budget = current()
        if operator == "+" and type(left) is str and type(right) is str:  # the most frequent operation, and no loop
            budget.build(len(left) + len(right))
            return left + right
        budget.tick()
        check_operator(budget, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if operator == "+" and isinstance(result, list | tuple):  # each turn of a loop may add to a long list
            budget.remember(result, budget.weigh_all((left, right)))
        budget.add(result)
        return result

    def call(__self, __context: Context, __obj: Value, *args: Value, **kwargs: Value) -> Value:
        budget = current()
        budget.tick()
        if args or kwargs:
            budget.require_arguments((*args, *kwargs.values()))
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            args = check_method(budget, owner, str(getattr(method, "__name__", "")), args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):  # most often
            budget.build(len(result))
        else:
            budget.add(result)
            if isinstance(owner, str) and isinstance(result, list | tuple):  # of new texts
                budget.build(len(owner))
        return result


def _ticking(function: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(function)
    def ticking(*args: Value) -> bool:
        tick()
        return function(*args)

    return ticking


def _bounded_filter(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def bounded(*args: Value, **kwargs: Value) -> Value:
        budget = current()
        budget.tick()
        values = args[skip:]
        if kwargs or len(values) > 1:
            budget.require_arguments((*values[1:], *kwargs.values()))
        result = function(*args[:skip], *check_filter(budget, name, values, kwargs), **kwargs)
        if isinstance(result, GeneratorType):
            return _bounded_items(budget, result, name in _MAKING)
        budget.add(result)
        return result

    return bounded


def _bounded_items(budget: Budget, items: Iterator[Value], are_new: bool) -> Iterator[Value]:
    """Yields the items of a filter that finds or makes them one by one."""
    for item in items:
        budget.tick()
        if are_new:
            budget.add(item)
        yield item
