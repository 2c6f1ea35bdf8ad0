"""Exceptions for the log: where they came from and their types, never their words.

A library's message often quotes what it choked on, which is what people wrote; and tracebacks that show local variables
show prompts.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Final, TextIO

LONGEST_CHAIN: Final = 8
BETWEEN: Final = "\n"
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def wordless(exc_info: ExcInfo) -> str:
    """The frames and the type of the exception, and of those that led to it, the first one first."""
    chain = list(islice(_chain(exc_info[1]), LONGEST_CHAIN))
    return BETWEEN.join(_one(error) for error in reversed(chain))


def write_wordless(file: TextIO, exc_info: ExcInfo) -> None:
    """As structlog's console wants it."""
    file.write("\n" + wordless(exc_info))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _one(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error)
    return f"Traceback (most recent call last):\n{frames}{kind.__module__}.{kind.__qualname__}"
