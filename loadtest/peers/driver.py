"""A driver process runs this loop: waves of requests in, the time of every token out, one line of JSON each way.

    in   {"requests": [{"at": 0.0, "token_ids": [...], "new_tokens": 64, "sampled": false}, ...]}
                                                                                     `at`: seconds into the wave
         {"texts": [[...], ...], "folder": "/tmp/x"}                                 what does it predict of them?
    out  {"ready": 1.9}                                                              once, seconds from start to ready
         {"times": [[...], ...], "token_ids": [[...], ...], "memory": 2000000000}    seconds into the wave; peak bytes
         {"written": 3}                                                              0.f32, 1.f32, 2.f32 in the folder

It uses the standard library only, because the peers' environments import it and do not have this project.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

TEMPERATURE = 0.7
TOP_P = 0.9
"""Of sampled answers."""


class Emit(Protocol):
    def __call__(self, number: int, new: Sequence[int], at: float | None = None) -> None:
        """A request's new token ids, called when they are known; `at` is the time by the engine's own clock, if any."""


class Engine(Protocol):
    """A peer with continuous batching: requests join between steps."""

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        """Exactly `new_tokens` are wanted, whatever they are; greedy ones, or `sampled` by TEMPERATURE and TOP_P."""
        ...

    def step(self, emit: Emit) -> None: ...


class Predicting(Protocol):
    """An engine that tells what it predicts of a text."""

    def predict(self, token_ids: list[int]) -> bytes:
        """Returns the logits behind every token but the last, fp32 in this machine's byte order, row after row. After
        this the engine takes no more waves: its cache may hold other tokens than it knows of."""
        ...


Generate = Callable[[list[list[int]], int, Callable[[Sequence[int]], None]], None]
"""(prompts, new tokens of each, called with a token of every row after each decode step): one static batch."""


class StaticBatches:
    """An engine of a peer that only knows whole batches: what waits when one ends is the next one.

    Rows of different lengths are padded by `generate`; a batch decodes until its longest answer is whole, and what a
    row makes beyond its own is not counted. `size` and `wait` hold a batch back until so many wait, or for so long.
    """

    def __init__(self, generate: Generate, size: int = 64, wait: float = 0.0) -> None:
        self._generate, self._size, self._wait = generate, size, wait
        self._waiting: list[tuple[int, list[int], int, float]] = []

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        self._waiting.append((number, token_ids, new_tokens, time.perf_counter()))

    def step(self, emit: Emit) -> None:
        if len(self._waiting) < self._size and time.perf_counter() - self._waiting[0][3] < self._wait:
            time.sleep(0.001)
            return
        batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
        done = 0

        def on_step(row_tokens: Sequence[int]) -> None:
            nonlocal done
            done += 1
            for (number, _, wanted, _), token in zip(batch, row_tokens, strict=True):
                if done <= wanted:
                    emit(number, [token])

        self._generate([token_ids for _, token_ids, _, _ in batch], max(wanted for _, _, wanted, _ in batch), on_step)


def run_wave(engine: Engine, requests: Sequence[dict[str, object]]) -> dict[str, object]:
    """Adds every request at its time and steps until each has its tokens."""
    times: list[list[float]] = [[] for _ in requests]
    token_ids: list[list[int]] = [[] for _ in requests]
    wanted = [int(str(request["new_tokens"])) for request in requests]
    order = sorted(range(len(requests)), key=lambda number: float(str(requests[number]["at"])))
    started = time.perf_counter()
    unfinished = 0

    def emit(number: int, new: Sequence[int], at: float | None = None) -> None:
        nonlocal unfinished
        was_open = len(token_ids[number]) < wanted[number]
        token_ids[number] += new
        times[number] += [time.perf_counter() - started if at is None else at] * len(new)
        unfinished -= was_open and len(token_ids[number]) >= wanted[number]

    while order or unfinished:
        now = time.perf_counter() - started
        while order and float(str(requests[order[0]]["at"])) <= now:
            number = order.pop(0)
            ids = list(requests[number]["token_ids"])  # type: ignore[call-overload]
            engine.add(number, ids, wanted[number], bool(requests[number].get("sampled")))
            unfinished += 1
        if unfinished:
            engine.step(emit)
        else:
            time.sleep(max(0.0, float(str(requests[order[0]]["at"])) - now))
    return {"times": times, "token_ids": token_ids, "memory": peak_memory()}


def write_predictions(engine: object, texts: Sequence[list[int]], folder: str) -> dict[str, object]:
    """Writes one file a text. Answers with an error where the engine tells no logits."""
    if not hasattr(engine, "predict"):
        return {"error": "it tells no logits"}
    for number, token_ids in enumerate(texts):
        Path(folder, f"{number}.f32").write_bytes(engine.predict(token_ids))
    return {"written": len(texts)}


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes (proc_pid_status(5), VmHWM)."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def serve(build: Callable[[], Engine]) -> None:
    """Build the engine, then answer waves until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    started = time.perf_counter()
    engine = build()
    print(json.dumps({"ready": time.perf_counter() - started}), file=answers, flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        is_wave = "requests" in told
        answer = run_wave(engine, told["requests"]) if is_wave else write_predictions(engine, **told)
        print(json.dumps(answer), file=answers, flush=True)
