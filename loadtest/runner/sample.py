"""A sample is one request as its user saw it. This module writes samples as JSON lines and reads them again.

It computes no figure. Times are rounded to microseconds when a sample is made, so that a file holds exactly what the
figures were computed from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """`id` was the request's `X-Request-Id`, which servers log. `due` and `sent` are seconds of the run. Latencies
    begin at `due`: in an open loop the scheduled time.

    `error` is empty for a whole answer. `refused`: the server said so with 429 or 503 and `Retry-After`. `counts` is
    false for requests of the warm-up. `ttft_ms` is None, and `itl_ms` empty, where the answer is not streamed.
    """

    id: str
    due: float
    sent: float
    route: str
    status: int = 0
    error: str = ""
    refused: bool = False
    counts: bool = True
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    ttft_ms: float | None = None
    itl_ms: list[float] = msgspec.field(default_factory=list)
    e2e_ms: float = 0.0

    @property
    def send_delay_ms(self) -> float:
        return round((self.sent - self.due) * 1e3, 3)

    @property
    def ended(self) -> float:
        return self.due + self.e2e_ms / 1e3


def write(path: Path, samples: Iterable[Sample]) -> None:
    encoder = msgspec.json.Encoder()
    path.write_bytes(b"".join(encoder.encode(sample) + b"\n" for sample in samples))


def read(path: Path) -> list[Sample]:
    decoder = msgspec.json.Decoder(Sample)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
