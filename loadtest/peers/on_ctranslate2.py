"""This peer is CTranslate2: `on_ctranslate2 MODEL_DIR COMPUTE_TYPE`. It has static batches and its own vocabulary."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-not-found]

from loadtest.peers.driver import Engine, StaticBatches, serve


def generate(
    generator: Any,
    vocabulary: list[str],
    prompts: list[list[int]],
    new_tokens: int,
    on_step: Callable[[Sequence[int]], None],
) -> None:
    """One static batch. Its callback tells one row's token at a time; a step is whole when every row has told."""
    rows: dict[int, int] = {}

    def on_token(result: Any) -> bool:
        rows[result.batch_id] = result.token_id
        if len(rows) == len(prompts):
            on_step([rows[row] for row in range(len(prompts))])
            rows.clear()
        return False

    generator.generate_batch(
        [[vocabulary[token] for token in prompt] for prompt in prompts],
        max_length=new_tokens,
        min_length=new_tokens,
        sampling_topk=1,
        beam_size=1,
        include_prompt_in_result=False,
        callback=on_token,
    )


def build(directory: str, compute_type: str) -> Engine:
    threads = len(os.sched_getaffinity(0))
    generator = ctranslate2.Generator(
        directory, device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
    )
    vocabulary = json.loads(Path(directory, "vocabulary.json").read_text(encoding="utf-8"))
    return StaticBatches(partial(generate, generator, vocabulary))


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
