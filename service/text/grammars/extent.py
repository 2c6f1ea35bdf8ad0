"""The extent of a JSON schema: one that is read beside all other requests must not hold them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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

    def add_schema(self, at: str) -> None:
        self.schemas += 1
        if self.schemas > MOST_SCHEMAS:
            raise _too_large(at, f"{MOST_SCHEMAS} schemas")

    def add_constant(self, at: str) -> None:
        """A value of `const` or `enum`, or one inside of it."""
        self.constants += 1
        if self.constants > MOST_CONSTANTS:
            raise _too_large(at, f"{MOST_CONSTANTS} constant values")

    def add_pattern(self, pattern: str, at: str) -> None:
        self.pattern += len(pattern)
        if self.pattern > MOST_PATTERN:
            raise _too_large(at, f"{MOST_PATTERN} characters of patterns")


def _too_large(at: str, most: str) -> UnsupportedField:
    return UnsupportedField(f"`{at}` cannot act: the whole schema holds more than {most}; make it smaller", param=at)
