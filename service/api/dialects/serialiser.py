"""A serialiser shows the answers to one HTTP request in the words of its dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from service.answers import Answer, Delta
from service.errors import DosirakError


class Serialiser(ABC):
    """One request's: it may hold what a stream has shown so far. Either `whole` is called, once, or `events`."""

    ending: bytes = b""
    """What follows the last event of a stream that went well."""

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The JSON body of a unary response, from the finished answers in the order of the requests."""

    @abstractmethod
    def events(self, delta: Delta) -> Iterable[bytes]:
        """The server-sent events that a delta makes."""

    @abstractmethod
    def failure(self, error: DosirakError, request_id: str) -> bytes:
        """The last bytes of a stream that fails after its headers: never silence."""
