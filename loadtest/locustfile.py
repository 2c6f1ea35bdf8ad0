"""Streaming users against a running server; TTFT, ITL and E2E appear as rows of locust's statistics.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:3000

This is for a look by hand at locust's own page; `make load` runs scenarios with limits, see docs/load.md.

Set DOSIRAK_ADMIN_KEY when the server asks for a key. A stream that ends without its last event is a failure, of its
request and of its row E2E.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator

from locust import HttpUser, between, events, task
from requests import RequestException, Response

QUESTIONS = (
    "안녕하세요!",
    "오늘 추천 메뉴가 뭐예요?",
    "Hi, what can you do?",
    "My name is Harin. What is my name?",
    "불고기 도시락 두 개 주세요.",
    "When do you open?",
)


def observe(name: str, seconds: float, length: int = 0, error: Exception | None = None) -> None:
    """One sample of a row in the statistics; locust wants milliseconds."""
    events.request.fire(  # type: ignore[no-untyped-call]
        request_type="GEN", name=name, response_time=seconds * 1000, response_length=length, exception=error, context={}
    )


def server_events(response: Response) -> Iterator[dict[str, object]]:
    for line in response.iter_lines():
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


class StreamingUser(HttpUser):
    """Asks one short question after another and reads every token."""

    wait_time = between(0.0, 1.0)

    def on_start(self) -> None:
        if key := os.environ.get("DOSIRAK_ADMIN_KEY"):
            self.client.headers["Authorization"] = f"Bearer {key}"

    @task(4)
    def stream(self) -> None:
        body = {
            "messages": [{"role": "user", "content": random.choice(QUESTIONS)}],
            "parameters": {"max_new_tokens": random.choice((16, 32, 64))},
        }
        started = time.perf_counter()
        with self.client.post(
            "/generate_stream", json=body, stream=True, catch_response=True, name="/generate_stream"
        ) as response:
            if response.status_code == 200 and (error := self._read(response, started)):
                response.failure(error)

    @task(1)
    def unary(self) -> None:
        body = {
            "messages": [{"role": "user", "content": random.choice(QUESTIONS)}],
            "parameters": {"max_new_tokens": 32},
        }
        self.client.post("/generate", json=body, name="/generate")

    def _read(self, response: Response, started: float) -> Exception | None:
        """Reads every token. Returns why the answer is not whole."""
        previous = started
        tokens = 0
        last: dict[str, object] = {}
        failure: Exception | None = None
        try:
            for event in server_events(response):
                now = time.perf_counter()
                if "token" in event:
                    observe("ITL" if tokens else "TTFT", now - previous)
                    previous, tokens = now, tokens + 1
                last = event
        except (RequestException, ValueError) as error:  # the connection was cut, or an event is no JSON
            failure = error
        if failure is None and last.get("generated_text") is None:
            failure = RuntimeError(f"the stream ended without its last event: {last.get('error')}")
        observe("E2E", time.perf_counter() - started, tokens, failure)
        return failure
