"""Numbers of a JSON schema, as the compiler keeps them exactly.

The compiler reads numbers as 64-bit floating point, of more than 15 digits not the nearest one, and multiplies them in
32 bits. It looks for neither. Beside another bound, it lets an integer that is an exclusive bound through, on the side
away from 0. Such bounds are written so that they allow a part of the same numbers:

    {"exclusiveMinimum": 3, "maximum": 3.5}  ─▶  {"minimum": 3.00000000000001, "maximum": 3.5}
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final, TypeGuard

from service.errors import UnsupportedField

_DIGITS: Final = 15  # that 64-bit floating point always holds
_LIMIT: Final = 1 << 53  # from here on, it leaves integers out
_MOST_EXPONENT: Final = 22  # up to this power of ten, numbers of fewer than 53 bits are read exactly
_MOST_MULTIPLE: Final = 1 << 32
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def with_bounds(schema: dict[str, Any], at: str) -> dict[str, Any]:
    """Returns the schema with bounds that the compiler keeps. Raises UnsupportedField for a bound that is too large."""
    if _BOUNDS.isdisjoint(schema):
        return schema
    kept = dict(schema)
    is_integer = kept.get("type") == "integer"
    for word, exclusive, rounding, strictest in (
        ("minimum", "exclusiveMinimum", ROUND_CEILING, max),
        ("maximum", "exclusiveMaximum", ROUND_FLOOR, min),
    ):
        if kept.get(exclusive) is True and word not in kept:
            raise UnsupportedField(f"`{at}.{exclusive}` is true without `{word}`: add it", param=f"{at}.{exclusive}")
        if isinstance(kept.get(exclusive), bool):  # draft 4
            kept |= {exclusive: kept.pop(word)} if kept.pop(exclusive) and word in kept else {}
        found, excluded = list[Decimal](), kept.get(exclusive)
        if is_number(kept.get(word)):
            bound = _decimal(kept[word], f"{at}.{word}")
            found.append(bound if _is_exact(bound) else _inside(bound, rounding, is_integer))
        if is_number(excluded):
            bound = _decimal(excluded, f"{at}.{exclusive}")
            leads_away = bound >= 0 if rounding == ROUND_CEILING else bound <= 0
            is_let_through = not is_integer and bound == bound.to_integral_value() and leads_away
            if is_let_through or not _is_exact(bound):
                del kept[exclusive]
                found.append(_inside(bound, rounding, is_integer))
        if found:
            kept[word] = _number(strictest(found))
    return kept


def require_exact_multiples(multiples: Iterable[tuple[str, Any]]) -> None:
    """Takes the places and values of each `multipleOf` in a schema. Raises UnsupportedField where the compiler, which
    may have to keep several of them at once, could not multiply them."""
    common, largest = 1, 1
    known = [(at, _decimal(value, at)) for at, value in multiples if is_number(value)]
    decimals = max((_decimals(value) for _, value in known), default=0)
    for at, value in known:
        if value <= 0:
            raise UnsupportedField(f"`{at}` must be above 0: correct it", param=at)
        multiple = int(value.scaleb(decimals)) or 1
        common, largest = math.lcm(common, multiple), max(largest, multiple)
        if decimals > _DIGITS or common * largest >= _MOST_MULTIPLE:
            raise UnsupportedField(
                f"`{at}` cannot be kept exactly: it has too many digits, alone or with the other `multipleOf`; remove "
                "it and check the answer",
                param=at,
            )


def require_exact(value: float, at: str) -> None:
    """Raises UnsupportedField for a number that the compiler would read as another one."""
    if type(value) is int and abs(value) < _LIMIT:
        return
    if not _is_exact(_decimal(value, at)):
        raise UnsupportedField(
            f"`{at}` cannot be kept exactly: it has a number of more than {_DIGITS} digits; remove it and check the "
            "answer",
            param=at,
        )


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _decimal(value: float, at: str) -> Decimal:
    """Returns the number as JSON writes it. Raises UnsupportedField for one that is too large."""
    if not abs(value) < _LIMIT:
        raise UnsupportedField(
            f"`{at}` cannot be kept exactly: it has a number that is not between -2^53 and 2^53; remove it and check "
            "the answer",
            param=at,
        )
    return Decimal(repr(value)).normalize()


def _number(value: Decimal) -> float:
    return int(value) if value == value.to_integral_value() else float(value)


def _decimals(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _is_exact(value: Decimal) -> bool:
    decimals = _decimals(value)
    return decimals <= _MOST_EXPONENT and abs(value.scaleb(decimals)) < _LIMIT


def _inside(bound: Decimal, rounding: str, is_integer: bool) -> Decimal:
    """Returns the next number inside of an exclusive bound, of those that have few digits."""
    step = Decimal(1) if is_integer else Decimal(1).scaleb(max(bound.adjusted() + 1 - _DIGITS, -_DIGITS))
    inside = bound.quantize(step, rounding)
    if inside == bound:
        inside += step if rounding == ROUND_CEILING else -step
    return inside
