"""This module splits a response's body into server-sent events. It knows neither what they say nor when they came."""

from __future__ import annotations


class Splitter:
    """Takes a body in any pieces. An event is complete with its blank line, whichever line ends the server writes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Returns the events that this piece completes; comments too."""
        rest = self._rest + piece
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")  # a last \r waits for its \n
        *whole, self._rest = rest.split(b"\n\n")
        return [event for event in whole if event]


def data_of(event: bytes) -> bytes:
    """Returns the event's data; empty of a comment."""
    lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
