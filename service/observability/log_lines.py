"""A log line shows one record to a person at a terminal: the time, then a request in columns, or an event with its
facts. This module knows no logger and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from structlog.typing import EventDict, WrappedLogger

REQUEST: Final = "request"
"""The event of `api.edge.layer`: one for each HTTP request."""
ELSEWHERE: Final = frozenset({"event", "level", "timestamp", "exception"})
METHOD_WIDTH, ROUTE_WIDTH, MS_WIDTH = 6, 22, 7
RESET, BOLD, DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
LEVELS: Final = {"warning": YELLOW, "error": RED, "critical": RED}
"""The levels that a line names, with their colours; the others are usual."""


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
