"""A real server sends one span a request to a real collector, whatever engine dies under it, and none of the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.collector import Collector, collecting, values
from tests.e2e.server import Server, free_port, python, running

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
PROMPT = "Zwetschgenknoedel bitte"


def ask(server: Server) -> list[str]:
    """Asks on three ways, BentoML's own among them; returns the texts of the answers."""
    few = {"max_new_tokens": 6}
    with server.client() as client:
        client.headers.update(CALLER)
        texts = [client.post("/generate", json={"inputs": PROMPT, "parameters": few}).json()["generated_text"]]
        chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}
        told = client.post("/v1/chat/completions", json=chat).json()
        texts.append(told["choices"][0]["message"]["content"])
        texts.append(client.post("/bento/generate", json={"prompt": PROMPT, **few}).json()["generated_text"])
    return texts


def outlive_an_engine(server: Server) -> None:
    """A stream whose engine is killed after its first token."""
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 300, "ignore_eos": True}}
    with server.client() as client, client.stream("POST", "/generate_stream", json=body, headers=CALLER) as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data:"))
        server.engine().kill()
        last = [line for line in lines if line.startswith("data:")][-1]
    assert json.loads(last[5:])["finish_reason"] == "length"


@pytest.mark.nightly
def test_spans_of_a_real_server(data_dir: Path, tmp_path: Path) -> None:
    with collecting() as collector:
        port, log = free_port(), tmp_path / "log"
        command = python("-m", "service.cli", "serve")
        with running(command, data_dir, log, port, DOSIRAK_OTLP_ENDPOINT=collector.url) as server:
            texts = ask(server)
            outlive_an_engine(server)
        check(collector, texts)
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert sum(line.get("trace_id") == TRACE for line in lines) == 4


def check(collector: Collector, texts: list[str]) -> None:
    """All has arrived by the server's end."""
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    assert [span.name for span in spans] == [
        "POST /generate",
        "POST /v1/chat/completions",
        "POST /generate",
        "POST /generate_stream",
    ]
    assert {span.parent_span_id.hex() for span in spans} == {PARENT}
    reached = ["admitted", "first_step", "first_token"]
    assert [[event.name for event in span.events] for span in spans] == [reached] * 3 + [[*reached, "replayed"]]
    for span in spans:
        times = [event.time_unix_nano for event in span.events]
        assert times == sorted(times) and span.start_time_unix_nano < times[0] <= times[-1] <= span.end_time_unix_nano
        assert values(span.attributes)["gen_ai.usage.output_tokens"] > 0
    sent = b"".join(collector.bodies)
    for text in [PROMPT, *(each for each in texts if len(each) > 5)]:
        assert text.encode() not in sent
