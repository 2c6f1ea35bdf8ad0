"""Checks of operators, methods and filters of a template, before they build what would be too large.

    "{:{w}}".format(1, w=width)     refused: a width of its own      [x] * 10_000      refused by 10,000 sizes of x

A check knows the sizes that its budget allows. It builds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Final, cast

from service.text.sandbox.budget import INTEGER_BITS, Budget, TooMuch, Value

_WIDTH = re.compile(r"\d{5,}|\*")
_STRUCTURAL = re.compile(
    "attr|batch|count|d|default|dictsort|first|groupby|items|last|length|list|map|max|min|random|reject|rejectattr|"
    "reverse|select|selectattr|slice|sort|sum|unique"
)
"""Filters that pass values on without turning them into text."""
_AT_ONCE: Final = frozenset({"groupby", "max", "min", "sort", "sum"})
"""Filters that look for an attribute in all items within one call."""
_MOST_ATTRIBUTES: Final = 16
_MOST_DECIMALS: Final = 300


def check_operator(budget: Budget, operator: str, left: Value, right: Value) -> None:
    sizes = [len(value) for value in (left, right) if isinstance(value, str | bytes)]
    containers = [budget.weigh(value) for value in (left, right) if isinstance(value, list | tuple)]
    integers = [abs(value) for value in (left, right) if isinstance(value, int)]
    if operator == "%" and isinstance(left, str):
        _check_format(budget, left, right)
    elif operator == "*" and (sizes or containers) and integers:
        budget.require(sum(sizes + containers) * integers[0])
    elif operator == "+" and len(sizes) == 2:
        budget.require(sum(sizes))
    elif operator == "+" and len(containers) == 2:
        budget.require(sum(containers))
    elif len(integers) == 2:
        first, second = (value.bit_length() for value in integers)
        if (first * integers[1] if operator == "**" else first + second) > INTEGER_BITS:
            raise TooMuch("computes with too large numbers")


def _check_format(budget: Budget, pattern: str, arguments: Value) -> None:
    if _WIDTH.search(pattern):
        raise TooMuch("formats too wide a text")
    fields = pattern.count("%") + pattern.count("{")
    budget.require(budget.weigh(arguments) * max(1, fields))
    budget.require(9999 * fields if re.search(r"\d{3,}", pattern) else 0)


def _check_fields(pattern: str) -> None:
    """Refuses fields of `str.format` whose width is an argument, as a text even."""
    if any("{" in (form or "") for _, _, form, _ in Formatter().parse(pattern)):
        raise TooMuch("formats too wide a text")


def _replaced(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * len(new)


def check_method(
    budget: Budget, owner: str | bytes, name: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]
) -> tuple[Value, ...]:
    """Refuses calls whose result would be too long. Returns the arguments, iterators as lists."""
    if isinstance(owner, bytes) or name == "translate":
        raise TooMuch("works on bytes or character tables")
    if name in ("format", "format_map"):
        _check_fields(owner)
        _check_format(budget, owner, (*args, dict(kwargs)))
    elif name == "replace" and len(args) >= 2:
        budget.require(_replaced(owner, str(args[0]), str(args[1])))
    elif name == "expandtabs":
        budget.require(len(owner) * max([8, *(value for value in (*args, *kwargs.values()) if isinstance(value, int))]))
    elif name == "join" and args:
        return (_check_join(budget, args[0], len(owner)), *args[1:])
    return args


def _check_join(budget: Budget, items: Value, separator: int) -> list[Value]:
    parts = list(cast("Iterable[Value]", items))
    budget.weigh_all(parts)
    budget.require(separator * len(parts))
    return parts


def check_filter(
    budget: Budget, name: str, values: tuple[Value, ...], kwargs: Mapping[str, Value]
) -> tuple[Value, ...]:
    """Refuses filters whose result would be too long. Returns the arguments, iterators that are joined as lists."""
    if not values:
        return values
    others = [*values[1:], *kwargs.values()]
    if _STRUCTURAL.fullmatch(name):
        if others:
            _check_structural(name, others)
        return values
    if not isinstance(values[0], str | int | float):
        budget.weigh(values[0])
    if name == "format":
        _check_format(budget, str(values[0]), others)
    elif name == "replace" and len(values) >= 3:
        budget.require(_replaced(str(values[0]), str(values[1]), str(values[2])))
    elif name == "round" and any(isinstance(value, int) and abs(value) > _MOST_DECIMALS for value in others):
        raise TooMuch("computes with too large numbers")
    elif name == "join":
        return (_check_join(budget, values[0], budget.weigh_all(others)), *values[1:])
    elif name in ("indent", "tojson"):
        _check_inserted(budget, values[0], others)
    return values


def _check_structural(name: str, others: Sequence[Value]) -> None:
    if name == "sum" and any(isinstance(value, list | tuple) for value in others):
        raise TooMuch("sums up lists")
    names = (value for value in others if isinstance(value, str))
    if name in _AT_ONCE and any(value.count(".") + value.count(",") > _MOST_ATTRIBUTES for value in names):
        raise TooMuch("looks for too much in each item")


def _check_inserted(budget: Budget, value: Value, inserted: Sequence[Value]) -> None:
    """Checks filters that put given texts, or a number of spaces, before lines of a text or of a value's JSON."""
    texts = [part for each in inserted for part in (each if isinstance(each, list | tuple) else (each,))]
    width = sum(len(item) if isinstance(item, str) else item for item in texts if isinstance(item, str | int))
    budget.require(width * (value.count("\n") + 1 if isinstance(value, str) else _indents(value, 1) if width else 0))


def _indents(value: Value, level: int) -> int:
    """Returns how many times the JSON of a value has an indentation, on all of its lines."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return level + sum(level + _indents(each, level + 1) for each in inside) if inside else 0
