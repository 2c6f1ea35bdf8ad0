"""Where traces go: the header traceparent is read as the W3C's specification says; our own setting or
OpenTelemetry's variables name the collector, and what is no URL stops the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.observability.tracing import trace_context
from service.settings import Settings
from tests.e2e.server import ROOT

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OURS = "DOSIRAK_OTLP_ENDPOINT"
WRONG = [
    "nonsense",
    "collector:4318",
    "localhost",
    "4318",
    "ftp://collector",
    "http://",
    "http:///v1/traces",
    "http://:4318",
    "http://c:port",
    "http://c:99999",
    "http://c:0",
    "http://[::1",
    "http://a b",
    "http://a\tb",
    " http://c",
]


def test_a_parent() -> None:
    found = trace_context([f" 00-{TRACE}-{SPAN}-01\t"], ["a=1", "b=2"])
    assert found is not None
    assert (found.trace_id, found.span_id, found.is_sampled, found.states) == (TRACE, SPAN, True, ("a=1", "b=2"))


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_the_sampled_flag_is_the_last_bit(flags: str, sampled: bool) -> None:
    found = trace_context([f"00-{TRACE}-{SPAN}-{flags}"], [])
    assert found is not None and found.is_sampled is sampled


def test_a_later_version_may_say_more() -> None:
    assert trace_context([f"cc-{TRACE}-{SPAN}-01-what-comes"], []) is not None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-1"],
        [f"00-{TRACE}-{SPAN}"],
        [f"cc-{TRACE}-{SPAN}-01more"],
        ["00-" + "x" * 10_000],
    ],
)
def test_what_cannot_be_followed_begins_a_new_trace(headers: list[str]) -> None:
    assert trace_context(headers, ["a=1"]) is None


BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, None),
        ({OURS: ""}, None),
        ({OURS: "http://c:4318"}, "http://c:4318/v1/traces"),
        ({OURS: "https://c/"}, "https://c/v1/traces"),
        ({OURS: "http://[::1]:4318/otlp"}, "http://[::1]:4318/otlp/v1/traces"),
        ({OURS: "http://c:4318/v1/traces"}, "http://c:4318/v1/traces"),
        ({BASE: "http://c:4318/"}, "http://c:4318/v1/traces"),
        ({BASE: ""}, None),
        ({TRACES: "http://c:4318/as-it-is"}, "http://c:4318/as-it-is"),
        ({TRACES: "http://t/t", BASE: "http://b"}, "http://t/t"),
        ({OURS: "http://ours", TRACES: "nonsense", BASE: "nonsense"}, "http://ours/v1/traces"),
        ({OURS: "http://ours", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://ours/v1/traces"),
        ({BASE: "http://b", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({BASE: "nonsense", "OTEL_SDK_DISABLED": "True"}, None),
        ({BASE: "http://b", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http://b/v1/traces"),
        (
            {
                BASE: "http://b",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http://b/v1/traces",
        ),
    ],
)
def test_where_traces_go(given: dict[str, str], url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.traces_url == url
    assert settings.shown()["otlp_endpoint"] == url


@pytest.mark.parametrize("url", WRONG)
@pytest.mark.parametrize("name", [OURS, BASE, TRACES])
def test_what_is_no_url_is_refused(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(ValidationError, match="must be a URL of a collector that takes OTLP over HTTP, as http://coll"):
        Settings()


@pytest.mark.parametrize("url", ["http://me:secret@c", "https://c/?api-key=secret", "http://c/#x"])
def test_credentials_belong_into_headers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE, url)
    with pytest.raises(ValidationError, match="put credentials into OTEL_EXPORTER_OTLP_HEADERS") as refused:
        Settings()
    [problem] = refused.value.errors(include_input=False)
    assert problem["msg"].startswith(f"Value error, {BASE} must be") and "secret" not in problem["msg"]


@pytest.mark.parametrize("protocol", ["grpc", "http/json"])
def test_another_protocol_is_refused(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE, "http://c:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with pytest.raises(ValidationError, match=f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}, but .* set {OURS}"):
        Settings()


@pytest.mark.parametrize("collector", [None, "http://127.0.0.1:1"])
def test_without_a_collector_nothing_is_imported(collector: str | None, tmp_path: Path) -> None:
    """Of what sends traces; FastAPI itself imports OpenTelemetry's interfaces."""
    program = f"""
import sys
from service.app import create
from service.settings import Settings
app = create(Settings(data_dir={str(tmp_path)!r}, otlp_endpoint={collector!r}))
wanted = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "google.protobuf", "requests")
print([name for name in wanted if name in sys.modules])
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    call = [sys.executable, "-c", program]
    shown = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert (shown.splitlines()[-1] == "[]") == (collector is None)
