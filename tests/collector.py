"""A collector of traces on a port of its own: it parses what arrives with OTLP's own messages, and keeps the bytes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def values(pairs: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    if kind == "array_value":
        return [each.string_value for each in pair.value.array_value.values]
    return getattr(pair.value, kind or "string_value")


@dataclass
class Collector:
    """`status` is what it answers. `bodies` are the exports as they came, `headers` those of the last one."""

    url: str = ""
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def exports(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> list[Span]:
        resources = [each for export in self.exports for each in export.resource_spans]
        return [span for each in resources for scope in each.scope_spans for span in scope.spans]

    @property
    def resource(self) -> dict[str, Any]:
        """Of the last export."""
        return values(self.exports[-1].resource_spans[0].resource.attributes)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.paths.append(path)
        self.headers = headers
        self.bodies.append(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if collector.status == 200:
                collector.take(self.path, headers, body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
