"""OpenVINO GenAI's continuous batching: `on_openvino MODEL_DIR GROUP KV COMPUTE` (0 and `default` leave its defaults).

GROUP: size of the groups in which activations are quantized to 8 bits. KV: precision of the cache, such as u8. COMPUTE:
precision of the rest, such as f32: where the default is bf16, on processors with AMX, activations stay in bf16, and
decoding takes twice as long.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import numpy
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from loadtest.peers.driver import TEMPERATURE, TOP_P, Emit, Engine, serve

CACHE_GIB = 2


class Pipeline:
    def __init__(self, directory: str, group: int, kv: str, compute: str) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = True
        options: dict[str, object] = {
            "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
            "PERFORMANCE_HINT": "LATENCY",
        }
        if group:
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = group
        if kv != "default":
            options["KV_CACHE_PRECISION"] = kv
        if compute != "default":
            options["INFERENCE_PRECISION_HINT"] = compute
        self._compiled = (directory, options)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(directory, scheduler, "CPU", options)
        self._running: dict[int, tuple[int, object]] = {}
        self._added = 0

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos, config.do_sample = True, sampled
        if sampled:
            config.temperature, config.top_p, config.rng_seed = TEMPERATURE, TOP_P, number
        ids = openvino.Tensor(numpy.array([token_ids], dtype=numpy.int64))
        self._running[self._added] = (number, self._pipeline.add_request(self._added, ids, config))
        self._added += 1

    def step(self, emit: Emit) -> None:
        self._pipeline.step()
        for key, (number, handle) in list(self._running.items()):
            while handle.can_read():  # type: ignore[attr-defined]
                for output in handle.read().values():  # type: ignore[attr-defined]
                    emit(number, list(output.generated_ids))
            if handle.get_status() == openvino_genai.GenerationStatus.FINISHED:  # type: ignore[attr-defined]
                del self._running[key]

    def predict(self, token_ids: list[int]) -> bytes:
        """By the same model with the same options, compiled for one sequence: the pipeline tells no logits."""
        directory, options = self._compiled
        compiled = openvino.Core().compile_model(f"{directory}/openvino_model.xml", "CPU", options)
        length = len(token_ids)
        inputs = {
            "input_ids": numpy.array([token_ids], dtype=numpy.int64),
            "attention_mask": numpy.ones((1, length), dtype=numpy.int64),
            "position_ids": numpy.arange(length, dtype=numpy.int64)[None],
            "beam_idx": numpy.zeros(1, dtype=numpy.int32),
        }
        found = compiled.create_infer_request().infer(inputs)["logits"]
        rows: bytes = found[0, :-1].astype(numpy.float32).tobytes()
        return rows


def build(directory: str, group: str, kv: str, compute: str) -> Engine:
    return Pipeline(directory, int(group), kv, compute)


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
