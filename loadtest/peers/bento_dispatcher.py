"""This peer is BentoML's own adaptive batcher over transformers' `generate`: a service without an engine.

DISPATCHED_MODEL=<checkpoint> DISPATCHED_DTYPE=fp32 bentoml serve loadtest.peers.bento_dispatcher:Dispatcher
"""

from __future__ import annotations

import os
from typing import Any

import bentoml
import torch
import transformers
from pydantic import BaseModel

from loadtest.peers.on_transformers import generate

LARGEST_BATCH = 32
NEVER_REFUSED_MS = 3_600_000
"""The dispatcher refuses what it expects to take longer; here every answer is waited for."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Ask(BaseModel):
    token_ids: list[int]
    new_tokens: int


@bentoml.service(workers=1, traffic={"timeout": 3600, "max_concurrency": 1000})
class Dispatcher:
    def __init__(self) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        dtype = DTYPES[os.environ["DISPATCHED_DTYPE"]]
        directory = os.environ["DISPATCHED_MODEL"]
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)

    @bentoml.api(  # type: ignore[untyped-decorator]
        batchable=True, batch_dim=0, max_batch_size=LARGEST_BATCH, max_latency_ms=NEVER_REFUSED_MS
    )
    def generate(self, asked: list[Ask]) -> list[list[int]]:
        """A static batch; each gets its own number of tokens of what the longest needed."""
        rows: list[list[int]] = [[] for _ in asked]

        def on_step(tokens: Any) -> None:
            for row, token in zip(rows, tokens, strict=True):
                row.append(token)

        generate(self._model, [each.token_ids for each in asked], max(each.new_tokens for each in asked), on_step)
        return [row[: each.new_tokens] for row, each in zip(rows, asked, strict=True)]
