"""A proxy before an S3 server that does to chosen calls what networks and busy stores do."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal
from urllib.parse import urlsplit

Kind = Literal["cut", "cut after", "500", "slow down", "truncated", "delayed"]
"""What happens: the connection ends before the call is passed on, or after it was done and before its answer; a status;
half of the answer; seconds in which nothing comes."""
DELAY_SECONDS: Final = 6.0
ERRORS: Final = {
    "500": (500, b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"),
    "slow down": (503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"),
}


@dataclass
class Fault:
    """`left` calls with this method whose path holds `part` fail; `met` have."""

    kind: Kind
    method: str
    part: str
    left: int
    met: int = 0


class Faults:
    """The proxy. Without a plan it passes everything on."""

    def __init__(self, endpoint: str) -> None:
        self._target = urlsplit(endpoint)
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        faults = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def _pass(self) -> None:
                with suppress(ConnectionError):  # the caller has given up
                    faults.serve(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def plan(self, kind: Kind, method: str, part: str, times: int = 1) -> Fault:
        """Replaces the plan."""
        self._fault = Fault(kind, method, part, times)
        return self._fault

    def clear(self) -> None:
        self._fault = None

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(30)

    def serve(self, call: BaseHTTPRequestHandler) -> None:
        call.close_connection = True
        body = call.rfile.read(int(call.headers.get("Content-Length") or 0))
        kind = self._due(call.command, call.path)
        if kind == "cut":
            return
        if kind in ERRORS:
            _answer(call, *ERRORS[kind])
            return
        if kind == "delayed":
            time.sleep(DELAY_SECONDS)
        status, headers, content = self._passed_on(call, body)
        if kind != "cut after":
            _answer(call, status, content[: len(content) // 2] if kind == "truncated" else content, headers)

    def _due(self, method: str, path: str) -> str:
        with self._lock:
            fault = self._fault
            if fault is None or not fault.left or fault.method != method or fault.part not in path:
                return ""
            fault.left -= 1
            fault.met += 1
            return fault.kind

    def _passed_on(self, call: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(str(self._target.hostname), self._target.port, timeout=30)
        try:
            upstream.request(call.command, call.path, body, dict(call.headers))
            answer = upstream.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            upstream.close()


def _answer(call: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
    """Sends the headers as they are, so that a shorter content is one that ended too early."""
    told = {name.lower(): value for name, value in (headers or {}).items()}
    if call.command != "HEAD" and "content-length" not in told:
        told["content-length"] = str(len(content))
    call.send_response_only(status)
    for name, value in told.items():
        if name not in ("connection", "transfer-encoding"):
            call.send_header(name, value)
    call.send_header("connection", "close")
    call.end_headers()
    call.wfile.write(content)
