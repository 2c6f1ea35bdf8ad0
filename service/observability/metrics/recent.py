"""Recent observations are the tokens of one version as they are handed out: how many, and the latencies of the last
minute. They are kept only while somebody listens."""

from __future__ import annotations

from service.observability.metrics.window import Window


class Recent:
    """`tokens` counts from this object's beginning."""

    __slots__ = ("itl", "tokens", "ttft")

    def __init__(self) -> None:
        self.tokens = 0
        self.ttft = Window()
        self.itl = Window()

    def add(self, at: float, tokens: int, first: float | None, gap: float | None) -> None:
        """Adds `tokens` handed out `at` this time, with the seconds that the metrics observed of them."""
        self.tokens += tokens
        if gap is not None:
            self.itl.add(at, gap)
        elif first is not None:
            self.ttft.add(at, first)
