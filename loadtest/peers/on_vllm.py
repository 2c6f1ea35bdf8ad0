"""This peer is vLLM on the CPU, with its engine in this process: `on_vllm MODEL_DIR DTYPE`.

By default vLLM keeps one core for its front end. Here the engine gets all cores.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from loadtest.peers.driver import Emit, Engine, serve

CORES = sorted(os.sched_getaffinity(0))
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES)),
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


class Vllm:
    def __init__(self, directory: str, dtype: str) -> None:
        from vllm import EngineArgs, LLMEngine, SamplingParams

        options = EngineArgs(model=directory, dtype=dtype, max_model_len=2048, max_num_seqs=64)
        self._engine = LLMEngine.from_engine_args(options)
        self._params = SamplingParams
        self._seen: dict[str, int] = {}
        self._added = 0

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        key = f"{self._added}-{number}"
        self._added += 1
        self._seen[key] = 0
        params = self._params(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(key, {"prompt_token_ids": token_ids}, params)

    def step(self, emit: Emit) -> None:
        for output in self._engine.step():
            token_ids = output.outputs[0].token_ids
            new = list(token_ids[self._seen[output.request_id] :])
            self._seen[output.request_id] = len(token_ids)
            emit(int(output.request_id.split("-")[1]), new)


def build(directory: str, dtype: str) -> Engine:
    return Vllm(directory, dtype)


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
