"""A dialect's answer, from its bytes: its events, how it ended, and what of it is the same each time.

This module knows bytes alone: no connections, no service, no faults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

Dialect = Literal["native", "openai", "anthropic", "ollama", "whole"]
"""`whole` is an answer that is no stream: one JSON document."""
DONE: Final = "[DONE]"
VOLATILE: Final = frozenset(
    {
        *("model", "version", "digest", "system_fingerprint", "created", "created_at", "timings", "context", "usage"),
        *(
            "replayed",
            "context_receipt",
            "total_duration",
            "load_duration",
            "prompt_eval_count",
            "prompt_eval_duration",
            "eval_duration",
        ),
    }
)
"""What may differ between two answers to the same request. An `id` may, too, where it is no token's number."""

Event = Any
"""The JSON of one event, or the word `[DONE]`."""


class Torn(Exception):
    """The bytes are no whole answer of their dialect; the text says why."""


def ending(dialect: Dialect, body: bytes) -> str:
    """Returns the code of the error event that ended the answer, "" if it came to its end. Raises Torn."""
    events = list(events_of(dialect, body))
    if not events:
        raise Torn("it has no event")
    failed = error_of(events[-2] if events[-1] == DONE and len(events) > 1 else events[-1])
    ends = [at for at, event in enumerate(events) if _IS_END[dialect](event)]
    if failed and (dialect != "openai" or events[-1] == DONE):
        return failed
    if ends != [len(events) - 1]:
        raise Torn("nothing ends it" if not ends else "it goes on behind its end")
    return ""


def canonical(dialect: Dialect, body: bytes) -> bytes:
    """Returns what every answer to the same request has, byte for byte. Raises Torn."""
    events = [_constant(event) for event in events_of(dialect, body)]
    return "\n".join(json.dumps(event, ensure_ascii=False) for event in events).encode()


def events_of(dialect: Dialect, body: bytes) -> Iterator[Event]:
    """Yields the events, without comments and pings. Raises Torn for bytes that end in the middle of one."""
    text = _decoded(body)
    if dialect == "whole":
        yield _json(text)
    elif dialect == "ollama":
        if not text.endswith("\n"):
            raise Torn(f"it ends inside a line: {text[-60:]!r}")
        yield from (_json(line) for line in text.splitlines() if line.strip())
    else:
        if not text.endswith("\n\n"):
            raise Torn(f"it ends inside an event: {text[-60:]!r}")
        yield from (event for block in text.split("\n\n") if (event := _of_block(block)) is not None)


def error_of(event: Event) -> str:
    """Returns the code of an error event of any dialect, "" for another event."""
    if not isinstance(event, Mapping) or not event.get("error"):
        return ""
    error = event["error"]
    told = error if isinstance(error, Mapping) else event
    return str(told.get("code") or told.get("type") or told.get("error"))


def _of_block(block: str) -> Event | None:
    """Returns the event of the lines up to a blank line; None for comments and pings."""
    data = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
    if not data or "event: ping" in block.split("\n"):
        return None
    return DONE if data == [DONE] else _json("\n".join(data))


def _json(text: str) -> Event:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Torn(f"an event is no JSON: {text[-60:]!r}") from error


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Torn(f"it is no UTF-8 at byte {error.start}") from error


def _constant(value: Event) -> Event:
    if isinstance(value, list):
        return [_constant(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if key not in VOLATILE}
    return {key: _constant(each) for key, each in kept.items() if key != "id" or isinstance(each, int)}


_IS_END: Final[Mapping[Dialect, Callable[[Event], bool]]] = {
    "native": lambda event: event.get("generated_text") is not None,
    "openai": lambda event: event == DONE,
    "anthropic": lambda event: event.get("type") == "message_stop",
    "ollama": lambda event: event.get("done") is True,
    "whole": lambda event: True,
}
