"""The requests of the smoke run: readiness, one answer, and streams that last long enough to be stopped in."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

LENGTH = 1200
"""Tokens of a stream; the demo model's window is 2048."""
PROBES = 8
"""Streams that the rate of this machine is taken from."""
MOST_STREAMS = 64
MARGIN = 2.0
"""More streams than the probes' are computed faster together, at most about so many times."""


@dataclass(frozen=True)
class Client:
    port: int
    key: str

    def is_ready(self) -> bool:
        try:
            return bool(self._open("/readyz", None, 2).status == 200)
        except OSError:
            return False

    def get(self, path: str) -> dict[str, Any]:
        with self._open(path, None, 60) as answer:
            told: dict[str, Any] = json.loads(answer.read())
            return told

    def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        try:
            with self._open(path, body, 60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def stream(self, tokens: int) -> Any:
        parameters = {"max_new_tokens": tokens, "ignore_eos": True}
        return self._open("/generate_stream", {"inputs": "안녕하세요", "parameters": parameters}, 120)

    def _open(self, path: str, body: object, seconds: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        return urllib.request.urlopen(request, timeout=seconds)


@dataclass
class Streams:
    """Streams of `tokens` tokens, read by a thread each; `counts` are the tokens of each that came so far."""

    tokens: int
    counts: list[int]
    threads: list[threading.Thread] = field(default_factory=list)
    lasted: list[float] = field(default_factory=list)

    def read(self, client: Client, number: int) -> None:
        began = time.monotonic()
        with client.stream(self.tokens) as events:
            for line in events:
                self.counts[number] += line.startswith(b"data:") and b'"token"' in line
        self.lasted.append(time.monotonic() - began)

    def until_all_began(self) -> None:
        while not all(self.counts) and any(thread.is_alive() for thread in self.threads):
            time.sleep(0.02)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)

    def whole(self) -> int:
        """Returns how many streams had all of their tokens, once all have ended."""
        self.join()
        return sum(count == self.tokens for count in self.counts)

    def seconds(self) -> float:
        return max(self.lasted, default=0.0)


def overlapping_streams(client: Client, seconds: float) -> Streams:
    """Starts as many streams as together last for `seconds` on this machine."""
    probes = begun(client, PROBES, LENGTH // 8)
    probes.join()
    rate = sum(probes.counts) / probes.seconds()
    return begun(client, min(MOST_STREAMS, max(1, round(MARGIN * seconds * rate / LENGTH))), LENGTH)


def begun(client: Client, number: int, tokens: int) -> Streams:
    streams = Streams(tokens, [0] * number)
    for each in range(number):
        thread = threading.Thread(target=streams.read, args=(client, each), daemon=True)
        streams.threads.append(thread)
        thread.start()
    return streams
