"""A connection is uvicorn's, with limits: time and bytes for a head, time for a body, one framing that nobody reads in
two ways. httptools parses; this module counts what it calls back with, and says when it is enough.

    silent, or a head that does not end    ─▶ 408 after `header_seconds`; nothing where no byte came
    a body that does not go on             ─▶ 408 once `body_seconds` brought less than LEAST_BYTES
    a head, or framing, without measure    ─▶ 431
    a request that can be read in two ways ─▶ 400
    more than MOST_WAITING requests        ─▶ the answers to those, and the end
    a body that goes on behind its answer  ─▶ the end, after LINGER_SECONDS
    an answer that nobody reads            ─▶ a reset (`service.api.edge.unread`)

What the server itself is slow at counts for no client: a model that thinks, a body that the app does not take yet.
"""

from __future__ import annotations

import asyncio
import errno
from enum import Enum, auto
from typing import Any, Final, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.api.edge.connections import Connections, Standing, peer_of
from service.api.edge.framing import last_answer, require_one_reading, without_chunks, without_upgrade
from service.api.edge.unread import LEAST_BYTES, Unread
from service.errors import DosirakError, HeadersTooLarge, MalformedRequest, Overloaded, RequestTimeout

MOST_FIELDS: Final = 100
"""Lines of a head; also the number of Apache, gunicorn and Kestrel."""
FRAMING: Final = 16
"""Bytes that frame a byte of a body, at most: chunks of one byte have 5."""
MOST_WAITING: Final = 1024
"""Requests that wait on one connection for the answer before theirs. Each takes 2 kB."""
LINGER_SECONDS: Final = 2.0
"""A client that still sends gets so long to read why nobody listens: a socket closed with bytes unread is reset."""


class Phase(Enum):
    """Which part of a request comes next."""

    HEAD = auto()
    BODY = auto()
    NONE = auto()


class Connection(HttpToolsProtocol):
    """One client's socket, from uvicorn's server. Protocols that a client would change to are not spoken."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._limits = connections.limits
        self.timeout_keep_alive = self._limits.keep_alive_seconds  # type: ignore[assignment]
        self.ws_protocol_class = None
        self.peer = ""
        self._running: RequestResponseCycle | None = None
        self._phase = Phase.HEAD
        self._messages = 0
        self._timed: tuple[int, Phase] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_silent = True
        self._has_ended = False
        self._fields = self._head_bytes = self._came = self._brought = self._brought_before = 0
        self._was_paused = False

    @property
    def standing(self) -> Standing:
        """Returns what it waits for."""
        if not self._is_owed:
            return Standing.SERVED if self.transport.get_write_buffer_size() else Standing.IDLE
        return Standing.SENDING if self._phase is Phase.BODY else Standing.SERVED

    @property
    def _is_behind_its_answer(self) -> bool:
        """Returns whether a body still comes whose request was answered without it."""
        is_of_the_last = self._phase is Phase.BODY and self._running is self.cycle
        return is_of_the_last and self._running is not None and self._running.response_complete

    @property
    def _is_owed(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = Unread(transport, self._let_go)
        self.transport = cast(asyncio.Transport, self._unread)
        self.peer = peer_of(self.client[0]) if self.client else ""
        if not self._connections.admit(self):
            self.transport.write(
                last_answer(Overloaded("Every connection of this server is in use: try again in a moment"))
            )
            self._close("full")
            return
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._stop_timer()
        self._unread.stop()
        self._connections.leave(self)
        if isinstance(exc, OSError) and exc.errno == errno.ETIMEDOUT:
            self._connections.closed("unread", self.peer)
        super().connection_lost(exc)
        self._give_up_answer()
        self._hold_nothing()

    def _hold_nothing(self) -> None:
        """Lets go of what holds it in turn. Such a ring would wait for a full round of the collector, which is rare."""
        self._unset_keepalive_if_required()
        self._running = self.cycle = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        self._is_silent = False
        self._came += len(data)
        try:
            self._parse(memoryview(data))
            if self._came > self._limits.header_bytes + FRAMING * self._brought and self._phase is not Phase.NONE:
                raise self._too_large()
        except (httptools.HttpParserError, DosirakError) as error:
            cause = error if isinstance(error, DosirakError) else error.__context__
            if not isinstance(cause, DosirakError):
                cause = MalformedRequest(f"The request is not HTTP/1.1: {error}")
            self._refuse(cause, "header_size" if isinstance(cause, HeadersTooLarge) else "malformed")
        else:
            self._settle()

    def drop(self) -> None:
        """Ends it at once, without a word."""
        self._has_ended = True
        self._stop_timer()
        self.transport.abort()

    def _let_go(self) -> None:
        self._connections.closed("unread", self.peer)
        self._has_ended = True
        self._stop_timer()
        self._unread.reset()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._phase = Phase.HEAD
        self._fields = self._head_bytes = self._came = self._brought = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._count(len(name) + len(value))
        if self._phase is Phase.HEAD:  # else it is a trailer, which no route reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        require_one_reading(self.headers, self.parser.get_http_version())
        if self.parser.should_upgrade():
            return
        if not self.url.startswith(b"/") and httptools.parse_url(self.url).path is None:
            raise MalformedRequest("The address has no path: send / at least")
        if len(self.pipeline) >= MOST_WAITING:
            raise MalformedRequest(f"More than {MOST_WAITING} requests wait on this connection: read the answers first")
        self._phase = Phase.BODY
        self._came = self._brought_before = 0
        self._was_paused = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._brought += len(body)
        super().on_body(body)
        self._was_paused |= self.flow.read_paused

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._phase = Phase.NONE
        self._messages += 1
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is Phase.HEAD:  # the next one has begun to come, and has a time of its own
            self._unset_keepalive_if_required()
        elif self._is_behind_its_answer and not self.transport.is_closing():
            self._start_timer(LINGER_SECONDS)
        self._connections.moved(self)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, without_chunks(cycle, app) if cycle.scope["http_version"] == "1.0" else app)

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: any client may ask for an upgrade, as Java's does with every request."""

    def _parse(self, data: memoryview) -> None:
        """Gives the bytes to the parser. A request that asks for another protocol is read again without the wish: the
        parser takes what follows such a head, its body, for another protocol, and then for the next request."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._read_without_upgrade()
            else:
                return

    def _read_without_upgrade(self) -> None:
        """Raises MalformedRequest for CONNECT and for HTTP/2 without TLS: nothing is left of them."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        kept = [(name, value) for name, value in self.headers if name != b"upgrade"]
        if method == b"CONNECT" or len(kept) == len(self.headers):
            raise MalformedRequest("This server speaks HTTP/1.1 alone and is no proxy: send the request as HTTP/1.1")
        lines = [b"%s: %s\r\n" % (name, without_upgrade(name, value)) for name, value in kept]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(lines)))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes or self._fields > MOST_FIELDS:
            raise self._too_large()

    def _too_large(self) -> HeadersTooLarge:
        most = self._limits.header_bytes
        return HeadersTooLarge(
            f"The headers are larger than {most} bytes, or more than {MOST_FIELDS}: send less, or set "
            "DOSIRAK_MAX_HEADER_BYTES higher",
            max_header_bytes=most,
        )

    def _settle(self) -> None:
        """Begins the time of the part that comes next, where that is another one than before."""
        timed = (self._messages, self._phase)
        if timed != self._timed:
            self._timed = timed
            self._connections.moved(self)
            self._start_timer()

    def _start_timer(self, seconds: float | None = None) -> None:
        self._stop_timer()
        if self._phase is not Phase.NONE:
            limits = self._limits
            usual = limits.header_seconds if self._phase is Phase.HEAD else limits.body_seconds
            self._timer = self.loop.call_later(usual if seconds is None else seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._is_excused():
            self._start_timer()
        elif self._is_silent:
            self._close("header_timeout")
        elif self._phase is Phase.HEAD:
            text = f"The headers did not end within {self._limits.header_seconds:g} s: send the whole request at once"
            self._refuse(RequestTimeout(text), "header_timeout")
        else:
            text = f"In {self._limits.body_seconds:g} s less than {LEAST_BYTES} bytes of the body came, and not its end"
            self._refuse(RequestTimeout(f"{text}: send it again, faster"), "body_timeout")

    def _is_excused(self) -> bool:
        """Returns whether the client may have more time: it goes on, or it is the server that does not."""
        if self._phase is Phase.HEAD:
            return self._is_owed
        if self._is_behind_its_answer:
            return False
        is_paused = self.flow.read_paused or self.cycle.waiting_for_100_continue
        goes_on = self._brought - self._brought_before >= LEAST_BYTES
        is_excused = is_paused or self._was_paused or goes_on
        self._was_paused, self._brought_before = is_paused, self._brought
        return is_excused

    def _refuse(self, error: DosirakError, reason: str) -> None:
        """Answers, where the answer is this request's, and ends the connection: behind the answers that are owed to the
        requests before it."""
        if self._is_owed and not (self._phase is Phase.BODY and self._running is self.cycle):
            self._end_behind_answers(reason)
            return
        if self._may_answer():
            self.transport.write(last_answer(error))
        self._close(reason, lingers=True)

    def _end_behind_answers(self, reason: str) -> None:
        self._has_ended = True
        self._stop_timer()
        self._connections.closed(reason, self.peer)
        if self._phase is Phase.BODY and self.pipeline:  # the request that is wrong waits there
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self._running
        assert last is not None
        last.keep_alive = False

    def _close(self, reason: str, lingers: bool = False) -> None:
        self._has_ended = True
        self._stop_timer()
        self._connections.closed(reason, self.peer)
        self._give_up_answer()
        if lingers and self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _may_answer(self) -> bool:
        """Returns whether an error would be the answer to the request that is wrong, not to one before it."""
        if self._phase is Phase.BODY:
            return self._running is None or not self._running.response_started
        return True

    def _give_up_answer(self) -> None:
        """Tells the request that runs that its client is gone. uvicorn tells the last one, which may be another."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
