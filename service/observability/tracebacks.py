"""This module writes exceptions for the log: their frames and types, never their messages.

A library's message often quotes the input that it failed on, which is users' text; and tracebacks that show local
variables show prompts.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Final

LONGEST_CHAIN: Final = 8
BETWEEN: Final = "\n"
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def wordless(exc_info: ExcInfo) -> str:
    """Returns the frames and the type of the exception, and of its causes, the first cause first."""
    chain = list(islice(_chain(exc_info[1]), LONGEST_CHAIN))
    return BETWEEN.join(_one(error) for error in reversed(chain))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _one(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error)
    return f"Traceback (most recent call last):\n{frames}{kind.__module__}.{kind.__qualname__}"
