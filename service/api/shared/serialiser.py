"""A serialiser writes the answers to one HTTP request in the words of its dialect; and what dialects write alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from service.api.http.encoding import COMMENT, EVENT_STREAM
from service.engine.protocol.messages import FinishReason
from service.errors import DosirakError
from service.generation.answer import Answer, Delta
from service.generation.delta import Token
from service.text.tokenizer import Tokenizer


class WholeSerialiser(ABC):
    """The serialiser of one request that is never streamed."""

    def watch(self, delta: Delta) -> None:  # noqa: B027  (most serialisers need the finished answers only)
        """Takes each delta of a whole answer, before `whole`."""

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Returns the JSON body of a unary response, from the finished answers in the order of the requests."""


class Serialiser(WholeSerialiser):
    """The serialiser of one request: it may remember what a stream has shown so far. The caller uses either `whole`,
    once, or `events`."""

    ending: bytes = b""
    """The bytes behind the last event of a stream without an error."""
    media_type: str = EVENT_STREAM
    """The media type of a stream."""
    comment: bytes = COMMENT
    """What a stream sends while it waits for its first token; its clients pass over it."""

    @abstractmethod
    def events(self, delta: Delta) -> Iterable[bytes]:
        """Yields the events of a delta."""

    @abstractmethod
    def failure(self, error: DosirakError, request_id: str) -> bytes:
        """Returns the last bytes of a stream that fails after its headers, so that no stream ends without a reason."""


def guard_field(answer: Answer) -> dict[str, Any]:
    """Returns the field `guard`, only where the guard found something."""
    findings = [{"rule": each.rule, "action": each.action, "count": each.count} for each in answer.findings]
    return {"guard": findings} if findings else {}


def finish_detail(reason: FinishReason | None) -> dict[str, Any]:
    """Returns the field `finish_detail`, our own word, only for reasons that no other dialect has a word for."""
    return {"finish_detail": reason.value} if reason in (FinishReason.DEADLINE, FinishReason.ERROR) else {}


def with_alternatives(tokenizer: Tokenizer, token: Token) -> dict[str, Any]:
    """Returns a sampled token and the likeliest ones at its position."""
    alternatives = [_token(tokenizer, *top) for top in token.top]
    return {**_token(tokenizer, token.id, token.logprob), "top_logprobs": alternatives}


def _token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    """Returns a token's logprob object. The `bytes` of the tokens of one character join to it."""
    data = tokenizer.text_bytes(token_id)
    octets = None if data is None else list(data)
    return {"token": tokenizer.token_text(token_id), "logprob": logprob, "bytes": octets}
