"""Values of a JSON schema, as the compiler keeps them exactly: numbers, constants, patterns and formats of strings.

The compiler reads numbers as 64-bit floating point, of more than 15 digits not the nearest one, and multiplies them in
32 bits. It looks for neither. Beside another bound, it lets an integer that is an exclusive bound through, on the side
away from 0. Such bounds are written so that they allow a part of the same numbers:

    {"exclusiveMinimum": 3, "maximum": 3.5}  ─▶  {"minimum": 3.00000000000001, "maximum": 3.5}

JSON Schema means the regexes of ECMA-262; the compiler reads those of Rust's regex crate. What they read differently is
written so that both mean the same, or refused:

    a.c        ─▶  a[^\\n\\r\\u2028\\u2029]c     ECMA's dot leaves out four line ends, Rust's leaves out one
    \\s\\S       ─▶  …                       a few characters are white space to one of them only: neither allows them
    [[a&&b]    ─▶  [\\[a\\&\\&b]             in a class, Rust reads `[`, `&&` and `~~` as sets of characters
    [a--b]     ─▶  refused
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final, TypeGuard

from service.errors import UnsupportedField

MOST_SCHEMAS: Final = 2048
MOST_CONSTANTS: Final = 8192
MOST_PATTERN: Final = 8192


@dataclass(slots=True)
class Extent:
    """What was read of one schema so far. Its methods count one thing more, and raise UnsupportedField where that is
    too much."""

    schemas: int = 0
    constants: int = 0
    pattern: int = 0
    written: int = 0
    """Characters of the schemas as the compiler reads them."""

    def add_schema(self, at: str) -> None:
        self.schemas += 1
        if self.schemas > MOST_SCHEMAS:
            raise _too_large(at, f"{MOST_SCHEMAS} schemas")

    def add_constant(self, at: str) -> None:
        """A value of `const` or `enum`, one inside of it, or a name in `required`."""
        self.constants += 1
        if self.constants > MOST_CONSTANTS:
            raise _too_large(at, f"{MOST_CONSTANTS} constant values")

    def add_pattern(self, pattern: str, at: str) -> None:
        self.pattern += len(pattern)
        if self.pattern > MOST_PATTERN:
            raise _too_large(at, f"{MOST_PATTERN} characters of patterns")


def _too_large(at: str, most: str) -> UnsupportedField:
    return UnsupportedField(f"`{at}` cannot act: the whole schema holds more than {most}; make it smaller", param=at)


_DIGITS: Final = 15  # that 64-bit floating point always holds
_LIMIT: Final = 1 << 53  # from here on, it leaves integers out
_MOST_EXPONENT: Final = 22  # up to this power of ten, numbers of fewer than 53 bits are read exactly
_MOST_MULTIPLE: Final = 1 << 32
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})

UNWRITABLE: Final = frozenset(chr(code) for code in (*range(32), 127)) - frozenset("\b\t\n\f\r")
"""Control characters that a grammar has no writing for, so that every character has one."""
_HEX: Final = "[0-9a-fA-F]"
_PART: Final = re.compile(
    rf"\\(?:x{_HEX}{{2}}|u{_HEX}{{4}}|U{_HEX}{{8}}|[xuU]\{{{_HEX}{{1,8}}\}}|.)|\[\^?\]?|\(\?[a-zA-Z-]+|--|.", re.DOTALL
)
_DOT: Final = r"[^\n\r\u2028\u2029]"
_NAMED_CHARACTERS: Final = {r"\a": "\a", r"\v": "\v"}
_ESCAPED_IN_CLASS: Final = frozenset("&~")
_SURE_BLANKS: Final = r" \t\n\r\f\v\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ALL_BLANKS: Final = _SURE_BLANKS + r"\u001c-\u001f\u0085\ufeff"

_DAY: Final = (
    r"(?:(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29"
    r"|[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_HOUR: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR})"
_LABEL: Final = r"[a-zA-Z0-9]{1,16}(?:-[a-zA-Z0-9]{1,15}){0,2}"
FORMATS: Final[Mapping[str, str]] = {
    "date": f"^{_DAY}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DAY}T{_TIME}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL}){{0,3}}$",
}
"""Formats whose own grammars let wrong values through: 30 February, leap seconds at any minute, names of hosts that are
too long or no valid Punycode. Each pattern allows a part of the right values only: of the years 1000 to 9999, because
libraries refuse the year 0."""
KEPT_FORMATS: Final = (*FORMATS, "duration", "email", "ipv4", "ipv6", "uri", "uuid")
"""Formats that an answer keeps; the others of them by the compiler's own grammars."""


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
        bounds, excluded = list[Decimal](), kept.get(exclusive)
        if is_number(kept.get(word)):
            bound = _decimal(kept[word], f"{at}.{word}")
            bounds.append(bound if _is_exact(bound) else _inside(bound, rounding, is_integer))
        if is_number(excluded):
            bound = _decimal(excluded, f"{at}.{exclusive}")
            leads_away = bound >= 0 if rounding == ROUND_CEILING else bound <= 0
            is_let_through = not is_integer and bound == bound.to_integral_value() and leads_away
            if is_let_through or not _is_exact(bound):
                del kept[exclusive]
                bounds.append(_inside(bound, rounding, is_integer))
        if bounds:
            kept[word] = _number(strictest(bounds))
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


def require_kept(value: Any, at: str, extent: Extent) -> None:
    """Raises UnsupportedField for a constant with a number that the compiler would read as another one, or with a
    control character that it would leave out. RecursionError where it is nested too deep."""
    extent.add_constant(at)
    if isinstance(value, str):
        if not UNWRITABLE.isdisjoint(value):
            raise UnsupportedField(f"`{at}` cannot act: it has a control character; remove it", param=at)
    elif is_number(value):
        require_exact(value, at)
    elif isinstance(value, list):
        for each in value:
            require_kept(each, at, extent)
    elif isinstance(value, dict):
        for name, each in value.items():
            require_kept(name, at, extent)
            require_kept(each, at, extent)


def with_patterns(schema: dict[str, Any], at: str, extent: Extent) -> dict[str, Any]:
    """Returns the schema with its pattern as the compiler reads it, and with a pattern for a format of FORMATS."""
    if schema.keys().isdisjoint(("pattern", "format")):
        return schema
    kept = dict(schema)
    if isinstance(kept.get("pattern"), str):
        kept["pattern"] = followed_pattern(kept["pattern"], f"{at}.pattern", extent)
    _require_format(schema, at)
    pattern = FORMATS.get(kept["format"]) if isinstance(kept.get("format"), str) else None
    if pattern is None:
        return kept
    del kept["format"]
    if "pattern" not in kept:
        return {**kept, "pattern": pattern}
    return {**kept, "allOf": [*kept.get("allOf", ()), {"pattern": pattern}]}


def _require_format(schema: Mapping[str, Any], at: str) -> None:
    """Raises UnsupportedField for a format of strings that no grammar keeps. A format says nothing of other types."""
    if "format" not in schema or schema["format"] in KEPT_FORMATS:
        return
    types = schema.get("type", "string")
    if "string" in (types if isinstance(types, list) else [types]):
        raise UnsupportedField(
            f"`{at}.format` cannot act: a grammar keeps only {', '.join(KEPT_FORMATS)}; remove it and check the answer",
            param=f"{at}.format",
        )


def followed_pattern(pattern: str, at: str, extent: Extent) -> str:
    """Returns the pattern as the compiler must read it. Raises UnsupportedField for one that it cannot read so."""
    extent.add_pattern(pattern, at)
    written, opening, before = list[str](), "", ""
    for match in _PART.finditer(pattern):
        part = match[0]
        _require_same(part, at, bool(opening))
        written.append(_in_class(part, opening, before) if opening else _outside(part))
        if opening and part.endswith("]") and not part.startswith("\\"):
            opening = ""
        elif not opening and part.startswith("["):
            opening = part
        before = part
    return "".join(written)


def _outside(part: str) -> str:
    """Returns a part of a pattern outside of a class. One that is an unwritable character becomes a class of two, which
    nothing matches; the compiler would leave the character out."""
    if part == ".":
        return _DOT
    return r"[\x01\x02]" if _character(part) in UNWRITABLE else _blanks(part, "") or part


def _in_class(part: str, opening: str, before: str) -> str:
    """Returns a part inside of the class that begins with `opening`. An unwritable character gets another beside it, so
    that the class is never of one character; not the end of a range, which has others."""
    if part.startswith("[") or part in _ESCAPED_IN_CLASS:
        return "\\" + part
    character = _character(part)
    if character in UNWRITABLE and before != "-":
        return (r"\x02" if character == "\x01" else r"\x01") + part
    return _blanks(part, opening) or part


def _character(part: str) -> str:
    """Returns the character that a part is; "" if it is none, or one that is written."""
    if part in _NAMED_CHARACTERS:
        return _NAMED_CHARACTERS[part]
    if part[:1] != "\\" or part[1:] in UNWRITABLE:
        return part[-1] if len(part) <= 2 else ""
    code = int(part[2:].strip("{}"), 16) if part[1] in "xuU" and len(part) > 2 else 0x110000
    return chr(code) if code < 0x110000 else ""


def _require_same(part: str, at: str, in_class: bool) -> None:
    """Raises UnsupportedField for what only one of both reads."""
    if part == "\\":
        raise UnsupportedField(f"`{at}` cannot act: it ends with a lone backslash; write `\\\\`", param=at)
    if part in ("[]", "[^]") and not in_class:
        raise UnsupportedField(f"`{at}` cannot act: it has an empty class `{part}`; write `\\[`, `\\]`", param=at)
    if part == "--" and in_class:
        raise UnsupportedField(f"`{at}` cannot act: it has `--` in a class; write `\\-` for each", param=at)
    if part.startswith("(?") and "x" in part and not in_class:
        raise UnsupportedField(f"`{at}` cannot act: it has the flag `x`; write it without blanks", param=at)


def _blanks(part: str, opening: str) -> str:
    """Returns white space, or what is none, in a class that begins with `opening` or alone: of both readings the
    characters that both allow."""
    if part not in (r"\s", r"\S"):
        return ""
    is_negated = opening == "[^"
    blanks = _SURE_BLANKS if (part == r"\s") != is_negated else _ALL_BLANKS
    if part == r"\S":
        return f"[^{blanks}]"
    return blanks if opening else f"[{blanks}]"
