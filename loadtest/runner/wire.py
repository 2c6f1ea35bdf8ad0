"""A connection is one user's keep-alive connection: gevent's socket, httptools, and the time at which each event came.

It reads a socket as soon as it can be read, notes the time, and decodes nothing before the answer has ended: so 64
streams at once delay each other's times by microseconds. A request that was sent is never sent again, because a lost
one is what a load test looks for.
"""

from __future__ import annotations

import time
from functools import cache
from select import POLLIN
from typing import Any, Final

import gevent
import httptools
import msgspec
from gevent import monkey, socket, ssl

from loadtest.runner.address import Address
from loadtest.runner.replies import Reply, Splitter

IDLE_SECONDS: Final = 2.0
"""A connection that was idle for longer is opened anew: servers close idle ones, and a request must not meet that."""
PIECE: Final = 65536
POLL: Final = monkey.get_original("select", "poll")
"""The system's own: it asks at once, where gevent's goes through its loop."""


class Cut(Exception):
    """The connection ended before its answer did."""


class Connection:
    """Opens itself where it is not open. One request at a time; any failure of it becomes the reply's error."""

    def __init__(self, address: Address, key: str, seconds: float) -> None:
        self._address, self._seconds = address, seconds
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self._fixed = f"Host: {address.authority}\r\nAccept-Encoding: identity\r\n{authorization}"
        self._socket: Any = None
        self._idle_since = 0.0
        self._reading = _Reading()

    def request(self, method: str, path: str, body: object = None, request_id: str = "") -> Reply:
        reply = Reply()
        try:
            with gevent.Timeout(self._seconds, TimeoutError(f"no whole answer within {self._seconds:g} s")):
                self._exchange(self._bytes(method, path, body, request_id), reply)
        except (OSError, Cut, httptools.HttpParserError) as error:
            self.close()
            reply.error = f"{type(error).__name__}: {error}"
        except BaseException:
            self.close()
            raise
        reply.ended = self._idle_since = time.perf_counter()
        return reply

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _bytes(self, method: str, path: str, body: object, request_id: str) -> bytes:
        payload = b"" if body is None else msgspec.json.encode(body)
        kind = "Content-Type: application/json\r\n" if payload else ""
        head = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n{self._fixed}{kind}"
        head += f"X-Request-Id: {request_id}\r\n" if request_id else ""
        return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload

    def _exchange(self, sent: bytes, reply: Reply) -> None:
        self._open()
        reading = self._reading = _Reading(reply)
        reply.sent = time.perf_counter()
        self._socket.sendall(sent)
        receive, parse = self._socket.recv, reading.parser.feed_data
        while not reading.complete:
            piece = receive(PIECE)
            reading.at = time.perf_counter()
            if piece:
                parse(piece)
            else:
                reading.end()
        reply.body = bytes(reading.body)
        if not reading.stays_open:
            self.close()

    def _open(self) -> None:
        if self._socket is not None and (time.perf_counter() - self._idle_since > IDLE_SECONDS or self._is_readable()):
            self.close()
        if self._socket is None:
            opened = _connected(self._address.host, self._address.port)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._address.scheme == "https":
                opened = _tls().wrap_socket(opened, server_hostname=self._address.host)
            self._socket = opened

    def _is_readable(self) -> bool:
        """True where the server has closed an idle connection."""
        waiting = POLL()
        waiting.register(self._socket, POLLIN)
        return bool(waiting.poll(0))


@cache
def _places(host: str, port: int) -> list[tuple[int, Any]]:
    """Asks for a name once a run: a look-up is no part of a request's time."""
    return [(each[0], each[4]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _connected(host: str, port: int) -> Any:
    """Returns a socket that is connected to the first of the name's addresses that takes it."""
    failure = OSError(f"{host} has no address")
    for family, place in _places(host, port):
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.connect(place)
            return opened
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
    raise failure


@cache
def _tls() -> Any:
    return ssl.create_default_context()


class _Reading:
    """httptools' callbacks for one response."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply or Reply()
        self.parser = httptools.HttpResponseParser(self)
        self.at = 0.0
        self.body = bytearray()
        self.complete = self.stays_open = False
        self._splitter: Splitter | None = None

    def end(self) -> None:
        """The server closed the connection: this ends a body whose length nothing tells, and cuts any other."""
        if not self.reply.status or self.reply.headers.keys() & {"content-length", "transfer-encoding"}:
            raise Cut("the connection was closed in mid-answer")
        self.complete = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.reply.status = self.parser.get_status_code()
        if "text/event-stream" in self.reply.headers.get("content-type", ""):
            self._splitter = Splitter()

    def on_body(self, piece: bytes) -> None:
        if self._splitter is None:
            self.body += piece
        else:
            self.reply.events += [(self.at, event) for event in self._splitter.feed(piece)]

    def on_message_complete(self) -> None:
        self.complete, self.stays_open = self.reply.status >= 200, bool(self.parser.should_keep_alive())
