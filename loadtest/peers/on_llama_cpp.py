"""llama.cpp in this process, by the functions that its own server calls: `on_llama_cpp FILE`.

All running requests and the prompts that have come make one batch a step, as its server's slots do.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import llama_cpp  # type: ignore[import-not-found]
import numpy

from loadtest.peers.driver import Emit, Engine, serve

SLOTS = 32
SLOT_TOKENS = 1024
BATCH = 2048


class Slots:
    def __init__(self, file: str) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        threads = len(os.sched_getaffinity(0))
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = SLOTS * SLOT_TOKENS, SLOTS
        options.n_batch, options.n_ubatch = BATCH, 512
        options.n_threads = options.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch: Any = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._free = list(range(SLOTS))
        self._waiting: list[tuple[int, list[int], int]] = []
        self._running: dict[int, tuple[int, list[int], int, int]] = {}
        """By slot: the request, the tokens to compute next, the position of the first, and how many are wanted."""

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        self._waiting.append((number, token_ids, new_tokens))

    def step(self, emit: Emit) -> None:
        while self._waiting and self._free:
            number, token_ids, wanted = self._waiting.pop(0)
            self._running[self._free.pop()] = (number, token_ids, 0, wanted)
        ends: dict[int, int] = {}
        self._batch.n_tokens = 0
        for slot, (_, token_ids, position, _) in self._running.items():
            if self._batch.n_tokens + len(token_ids) <= BATCH:
                self._put(slot, token_ids, position, all_logits=False)
                ends[slot] = self._batch.n_tokens - 1
        self._decode()
        for slot, row in ends.items():
            number, token_ids, position, wanted = self._running[slot]
            token = int(numpy.argmax(self._logits(row)))
            emit(number, [token])
            if wanted > 1:
                self._running[slot] = (number, [token], position + len(token_ids), wanted - 1)
                continue
            del self._running[slot]
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)
            self._free.append(slot)

    def predict(self, token_ids: list[int]) -> bytes:
        self._batch.n_tokens = 0
        self._put(0, token_ids[:-1], 0, all_logits=True)
        self._decode()
        rows = b"".join(self._logits(row).tobytes() for row in range(len(token_ids) - 1))
        llama_cpp.llama_memory_seq_rm(self._memory, 0, -1, -1)
        return rows

    def _put(self, slot: int, token_ids: list[int], position: int, all_logits: bool) -> None:
        batch = self._batch
        for at, token in enumerate(token_ids):
            row = batch.n_tokens
            batch.token[row], batch.pos[row] = token, position + at
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, slot
            batch.logits[row] = all_logits or at == len(token_ids) - 1
            batch.n_tokens += 1

    def _decode(self) -> None:
        if failed := llama_cpp.llama_decode(self._context, self._batch):
            raise SystemExit(f"llama_decode returned {failed}")

    def _logits(self, row: int) -> Any:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return numpy.ctypeslib.as_array(logits, shape=(self._width,))


def build(file: str) -> Engine:
    return Slots(file)


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
