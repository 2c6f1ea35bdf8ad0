"""The client asks a server over HTTP: for sessions, answers, and what else a command wants. It knows no terminal.

It raises a refusal as `Refused` with the server's own sentence, and a server that does not respond as `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from service.cli.wire import Answer, Event, Message, Messages, Preview, Session
from service.errors import DosirakError, InvalidRequest, Unavailable

Fields = Mapping[str, object]
Value = TypeVar("Value")
PAGE: Final = 100
TIMEOUT: Final = httpx.Timeout(600, connect=5)
"""An answer may wait for its turn."""
_HERE: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts that no proxy of the environment is asked for."""


class Refused(DosirakError):
    """The server's refusal. `kind` is its code, `numbers` are those beside the sentence."""

    def __init__(self, message: str, kind: str = "", numbers: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.numbers = dict(numbers or {})


class _Body(msgspec.Struct):
    error: str
    code: str = ""
    window: int | None = None
    needed_tokens: int | None = None
    reserve: int | None = None


class Client:
    """A client of one server. It is not safe from several threads."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str]) -> Client:
        """Returns a client. Raises InvalidRequest for a text that is no address."""
        try:
            here = httpx.URL(url).host in _HERE
            return cls(httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=not here))
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{url} is no address ({error}): write it as in http://127.0.0.1:3000") from None

    @property
    def url(self) -> str:
        return str(self._http.base_url).rstrip("/")

    def ask(self, method: str, path: str, kind: type[Value], body: Fields | None = None) -> Value:
        """Returns an answer's JSON as a `kind`."""
        return _decoded(self.send(method, path, body), kind)

    def send(self, method: str, path: str, body: Fields | None = None) -> bytes:
        """Returns the bytes of an answer."""
        with self._reaching():
            response = self._http.request(method, path, content=_encoded(body), headers=_JSON)
        _require_success(response)
        return response.content

    def create(self, fields: Fields) -> Session:
        return self.ask("POST", "/v1/sessions", Session, fields)

    def session(self, id: str) -> Session:
        return self.ask("GET", _path(id), Session)

    def change(self, id: str, fields: Fields) -> Session:
        return self.ask("PATCH", _path(id), Session, fields)

    def fork(self, id: str, at: str) -> Session:
        return self.ask("POST", _path(id, "fork"), Session, {"at": at})

    def messages(self, id: str) -> tuple[Message, ...]:
        """Returns all messages, oldest first."""
        messages: list[Message] = []
        cursor: str | None = ""
        while cursor is not None:
            more = f"&cursor={quote(cursor, safe='')}" if cursor else ""
            page = self.ask("GET", f"{_path(id, 'messages')}?limit={PAGE}{more}", Messages)
            messages += page.data
            cursor = page.next_cursor
        return tuple(messages)

    def change_message(self, id: str, message: str, fields: Fields) -> Message:
        return self.ask("PATCH", _path(id, "messages", message), Message, fields)

    def export(self, id: str) -> bytes:
        return self.send("GET", _path(id, "export"))

    def preview(self, turn: Fields) -> Preview:
        return self.ask("POST", "/v1/context/preview", Preview, turn)

    def say(self, turn: Fields) -> Generator[str | Answer, None, None]:
        """Yields the answer's texts as they come, then the facts about the answer. Closing the iterator stops the
        answer."""
        return self._stream("/generate", turn)

    def regenerate(self, id: str, fields: Fields) -> Generator[str | Answer, None, None]:
        """Does as `say`; the answer replaces the last one."""
        return self._stream(_path(id, "regenerate"), fields)

    def _stream(self, path: str, body: Fields) -> Generator[str | Answer, None, None]:
        content = _encoded({**body, "stream": True})
        with self._reaching(), self._http.stream("POST", path, content=content, headers=_JSON) as response:
            if response.is_error:
                response.read()
            _require_success(response)
            yield from _texts(response.iter_lines())

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise Unavailable(
                f"No server answers at {self.url}: start one with `make serve`, or name it with --url"
            ) from None
        except httpx.UnsupportedProtocol:
            raise InvalidRequest(f"{self.url} is no address: write it as in http://127.0.0.1:3000") from None
        except httpx.HTTPError as error:
            raise Unavailable(
                f"The connection to {self.url} broke ({type(error).__name__}): send it again; what was not answered "
                "whole is not stored"
            ) from None


_JSON: Final = {"Content-Type": "application/json"}


def server_sent(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (event, data) of a text/event-stream. An event without data, or one that was cut off, is skipped."""
    kind, data = "", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind or "message", "\n".join(data)
            kind, data = "", []
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)


def _texts(lines: Iterable[str]) -> Generator[str | Answer, None, None]:
    for kind, data in server_sent(lines):
        if kind == "error":
            raise _refusal(data.encode())
        event = _decoded(data.encode(), Event)
        yield event.token.text
        if event.generated_text is not None:
            yield _decoded(data.encode(), Answer)
            return
    raise Unavailable("The stream ended before its answer: send it again; what was not answered whole is not stored")


def _path(*parts: str) -> str:
    return "/v1/sessions/" + "/".join(quote(part, safe="") for part in parts)


def _encoded(body: Fields | None) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _decoded(body: bytes, kind: type[Value]) -> Value:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        raise Unavailable("What answers there speaks another language: does --url name a server of Dosirak?") from None


def _require_success(response: httpx.Response) -> None:
    if not response.is_success:
        raise _refusal(response.content, response.status_code)


def _refusal(body: bytes, status: int = 0) -> Refused:
    try:
        said = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError:
        return Refused(f"The server answered {status or 'with an error'} without a reason: its log has one")
    numbers = {"window": said.window, "needed_tokens": said.needed_tokens, "reserve": said.reserve}
    return Refused(said.error, said.code, {name: number for name, number in numbers.items() if number is not None})
