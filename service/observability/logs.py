"""The log: one line a record on standard error, JSON or readable, and exceptions without their messages, which often
quote users' text. The module knows no route and no request."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from service.environment import colours_wanted
from service.host import wordless
from service.settings import Settings

REQUEST: Final = "request"
"""The event of `api.edge.layer`: one for each HTTP request."""
ELSEWHERE: Final = frozenset({"event", "level", "timestamp", "exception"})
METHOD_WIDTH, ROUTE_WIDTH, MS_WIDTH = 6, 22, 7
RESET, BOLD, DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
LEVELS: Final = {"warning": YELLOW, "error": RED, "critical": RED}
"""The levels that a line names, with their colours; the others are usual."""
SELDOM_SECONDS: Final = 60.0


class _Lines:
    """Writes a line at a time. A line that the stream does not take, as a file on a full disk, is lost, and what was
    about to be told goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        with suppress(OSError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = msg


class LogLines:
    """The last processor of structlog: it makes text of a record. An exception follows on lines of its own."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def __call__(self, _logger: WrappedLogger, _method: str, record: EventDict) -> str:
        parts = self._request(record) if record["event"] == REQUEST else self._event(record)
        line = "  ".join([self._styled(str(record.get("timestamp", "")), DIM), *parts])
        return f"{line}\n{record['exception']}" if record.get("exception") else line

    def _request(self, record: Mapping[str, object]) -> list[str]:
        """Returns method and route, status, milliseconds, tokens of prompt and answer, model or error code. The route
        is its template: an address may hold a user's words."""
        status = record["status"]
        seconds = record["seconds"]
        assert isinstance(status, int) and isinstance(seconds, float)
        parts = [
            f"{record['method']:<{METHOD_WIDTH}} {record['route'] or '(no route)':<{ROUTE_WIDTH}}",
            self._styled(str(status), RED if status >= 500 else YELLOW if status >= 400 else GREEN),
            f"{seconds * 1000:{MS_WIDTH},.0f} ms",
        ]
        if "completion_tokens" in record:
            parts.append(f"{record['prompt_tokens']}+{record['completion_tokens']} tokens")
        return [*parts, *(str(record[name]) for name in ("model", "code") if name in record)]

    def _event(self, record: Mapping[str, object]) -> list[str]:
        level = str(record.get("level", ""))
        named = [self._styled(level, LEVELS[level])] if level in LEVELS else []
        facts = [
            f"{name}={_shown(value)}"
            for name, value in record.items()
            if name not in ELSEWHERE and not name.startswith("_") and value is not None
        ]
        return [*named, self._styled(str(record["event"]), BOLD), *([" ".join(facts)] if facts else [])]

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{RESET}" if self._colours and text else text


def _shown(value: object) -> str:
    """Returns a value's text; in quotes where it has white space or is no plain text."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Characters that end a line to some readers; JSON may hold them as they are."""


def configure_logging(settings: Settings) -> None:
    """Writes one line a record to standard error: JSON, or columns on a terminal. The standard library's records join
    in.

    The log holds no user's text. Exceptions go without their messages. Libraries are silent below level info (aiosqlite
    shows every statement with its values). So is uvicorn's line for each request, which has the query.
    """
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    as_json = is_json(settings)
    renderer: structlog.typing.Processor = LogLines(colours_wanted(sys.stderr.isatty()))
    if as_json:
        renderer = structlog.processors.JSONRenderer(
            serializer=lambda record, **_: msgspec.json.encode(record).decode().translate(_LINE_ENDS)
        )
    lines = _Lines(sys.stderr)
    stamp = structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json)
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        stamp,
        structlog.processors.ExceptionRenderer(lambda exc_info: wordless(exc_info[1])),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO))
    logging.getLogger("uvicorn.access").disabled = True


class Seldom:
    """A warning that many could cause: for each reason at most a line a minute, with how many there were since the last
    one."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._warned_at: dict[str, float] = {}
        self._since: Counter[str] = Counter()

    def warn(self, reason: str, **facts: object) -> None:
        """Counts one. `facts` are of the one that is told; there must be few reasons."""
        self._since[reason] += 1
        now = time.monotonic()
        if now - self._warned_at.get(reason, -math.inf) >= SELDOM_SECONDS:
            self._warned_at[reason] = now
            structlog.get_logger(__name__).warning(self._event, reason=reason, count=self._since.pop(reason), **facts)


def is_json(settings: Settings) -> bool:
    """Returns whether the log is JSON: as set, else wherever standard error is no terminal."""
    return settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
