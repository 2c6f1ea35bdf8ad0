"""This module reads replies of each route: when tokens came, how many, of which version, and if the answer is whole.

It knows no connection. The client says when each event arrived, and only here are the events decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

REFUSING: Final = frozenset({429, 503})
SHOWN: Final = 200


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


@dataclass(slots=True)
class Reply:
    """What came back: `events` with the second of their arrival, or a `body`. `error` is the wire's."""

    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""
    error: str = ""

    @property
    def refused(self) -> bool:
        return self.status in REFUSING and "retry-after" in self.headers


@dataclass(slots=True)
class Answer:
    """What a reply says. `error` is empty for a whole answer."""

    token_times: list[float] = field(default_factory=list)
    text: str = ""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    error: str = ""


def read(reply: Reply) -> Answer:
    """Never raises: whatever is wrong with a reply is the answer's error."""
    if reply.error or reply.status != 200:
        return Answer(error=reply.error or _refusal(reply))
    answer = Answer()
    try:
        if "text/event-stream" in reply.headers.get("content-type", ""):
            _read_stream(reply, answer)
        else:
            _read_body(msgspec.json.decode(reply.body), answer)
    except (msgspec.DecodeError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        answer.error = f"unreadable answer: {type(error).__name__}: {error}"[:SHOWN]
    named = reply.headers.get("x-model-version", "")
    if not answer.error and named and answer.model and named != answer.model:
        answer.error = f"the answer names two versions: {named} in its headers, {answer.model} in its body"
    return answer


def _refusal(reply: Reply) -> str:
    """The server's sentence without the request's id: equal refusals are counted together."""
    said = (reply.body or b"".join(event for _, event in reply.events)).decode(errors="replace")
    try:
        error = msgspec.json.decode(said)["error"]
        said = error["message"] if isinstance(error, dict) else str(error)
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    return f"status {reply.status}: {said.strip()[:SHOWN]}".rstrip(": ")


def _read_stream(reply: Reply, answer: Answer) -> None:
    """Both dialects: a token an event. The answer is whole if its usage came, behind which nothing is missing."""
    whole = False
    for at, event in reply.events:
        data = data_of(event)
        if not data or data == b"[DONE]":
            continue
        said: dict[str, Any] = msgspec.json.decode(data)
        if event.startswith(b"event: error") or "error" in said:
            answer.error = f"error in the stream: {said.get('error')}"[:SHOWN]
            return
        text = _text_of(said)
        if text is not None:
            answer.token_times.append(at)
            answer.text += text
        if said.get("usage"):
            whole = True
            _read_counts(said, answer)
    if not whole:
        answer.error = "the stream ended without its last event"


def _text_of(said: dict[str, Any]) -> str | None:
    """Returns an event's text; None of an event without a token."""
    if "token" in said:
        return str(said["token"]["text"])
    delta = said["choices"][0].get("delta", {}) if said.get("choices") else {}
    return delta.get("content") or None


def _read_body(said: dict[str, Any], answer: Answer) -> None:
    text = said["generated_text"] if "generated_text" in said else said["choices"][0].get("text", "")
    answer.text = str(text)
    _read_counts(said, answer)


def _read_counts(said: dict[str, Any], answer: Answer) -> None:
    usage = said["usage"]
    answer.prompt_tokens, answer.tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    details = usage.get("prompt_tokens_details") or usage
    answer.cached_tokens = int(details.get("cached_tokens") or 0)
    answer.model = str(said.get("model", ""))
