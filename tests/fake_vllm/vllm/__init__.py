"""A vLLM that computes nothing: the names that `service.engine.vllm.core` uses, around a model of arithmetic.

The next token of a context is (7 · its last token + its length) mod 97, plus the seed where it is sampled. A prompt
that begins with DIE, HANG or RAISE does so in its second step. It holds what vLLM 0.32 was seen to answer
(`RequestOutput`, `SchedulerStats`), and no more.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

__version__ = "0.32.0"
VOCABULARY = 97
DIE, HANG, RAISE = 90, 91, 92
BLOCKS, BLOCK_SIZE = 64, 16
STEP_SECONDS = float(os.environ.get("FAKE_VLLM_STEP_SECONDS", "0.002"))
HOLD = os.environ.get("FAKE_VLLM_HOLD", "")
"""While this file is there, a request that has ten tokens gets no more."""


class EngineArgs:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def create_engine_config(self, usage_context: object, headless: bool = False) -> Any:
        given = self.arguments
        return SimpleNamespace(
            cache_config=SimpleNamespace(
                num_gpu_blocks=BLOCKS, block_size=BLOCK_SIZE, kv_cache_memory_bytes=given["kv_cache_memory_bytes"]
            ),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=given["max_num_batched_tokens"]),
            parallel_config=SimpleNamespace(
                ranks=given["tensor_parallel_size"] * given["pipeline_parallel_size"],
                extension=given.get("worker_extension_cls", ""),
                nnodes=given.get("nnodes", 1),
                node_rank=given.get("node_rank", 0),
                master_addr=given.get("master_addr", ""),
                master_port=given.get("master_port", 0),
            ),
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY, model=given["model"]),
        )


class SamplingParams:
    def __init__(self, **given: Any) -> None:
        if not 0 <= given["temperature"] <= 2 or given["max_tokens"] < 1 or given["min_tokens"] > given["max_tokens"]:
            raise ValueError("out of range")
        self.given = given


class LLMEngine:
    def __init__(self, logger: Any, executor: MultiprocExecutor) -> None:
        self._logger = logger
        self._executor = executor
        self.called: list[str] = []
        self._requests: dict[str, SimpleNamespace] = {}
        self.adapters: set[int] = set()

    @classmethod
    def from_vllm_config(cls, config: Any, stat_loggers: list[Any]) -> LLMEngine:
        return cls(stat_loggers[0](config, 0), MultiprocExecutor(config))

    def collective_rpc(self, method: str) -> None:
        self.called.append(method)

    def add_request(
        self, request_id: str, prompt: dict[str, Any], params: SamplingParams, lora_request: Any, priority: int
    ) -> None:
        assert lora_request is None or lora_request.lora_int_id in self.adapters
        self._requests[request_id] = SimpleNamespace(
            context=list(prompt["prompt_token_ids"]),
            first=prompt["prompt_token_ids"][0],
            prompt=len(prompt["prompt_token_ids"]),
            given=params.given,
            shift=lora_request.lora_int_id if lora_request else 0,
            made=0,
            queued=time.monotonic(),
            priority=priority,
        )

    def abort_request(self, request_ids: list[str]) -> None:
        for each in request_ids:
            del self._requests[each]

    def add_lora(self, request: Any) -> bool:
        self.adapters.add(request.lora_int_id)
        return True

    def remove_lora(self, number: int) -> bool:
        self.adapters.remove(number)
        return True

    def step(self) -> list[Any]:
        time.sleep(STEP_SECONDS)
        while HOLD and Path(HOLD).exists() and any(each.made >= 10 for each in self._requests.values()):
            time.sleep(0.01)
        self._executor.compute()
        begun = [each for each in self._requests.values() if not each.made]
        details = SimpleNamespace(
            num_ctx_tokens=sum(each.prompt for each in begun),
            num_ctx_requests=len(begun),
            num_generation_tokens=len(self._requests) - len(begun),
            num_generation_requests=len(self._requests) - len(begun),
        )
        outputs = [self._computed(id, each) for id, each in list(self._requests.items())]
        stats = SimpleNamespace(
            num_running_reqs=len(self._requests),
            num_waiting_reqs=0,
            num_skipped_waiting_reqs=0,
            kv_cache_usage=len(self._requests) / BLOCKS,
            prefix_cache_stats=SimpleNamespace(queries=details.num_ctx_tokens, hits=0),
            iteration_details=details,
        )
        self._logger.record(stats, SimpleNamespace(num_preempted_reqs=0), mm_cache_stats=None, engine_idx=0)
        return outputs

    def _computed(self, id: str, request: SimpleNamespace) -> Any:
        _misbehave(request)
        given, now = request.given, time.monotonic()
        token = (7 * request.context[-1] + len(request.context) + given.get("seed", 0) + request.shift) % VOCABULARY
        request.context.append(token)
        request.made += 1
        ended = token in given["stop_token_ids"] and request.made > given["min_tokens"]
        reason = "stop" if ended else "length" if request.made == given["max_tokens"] else None
        if reason:
            del self._requests[id]
        return SimpleNamespace(
            request_id=id,
            prompt_logprobs=_prompt_logprobs(request) if "prompt_logprobs" in given and request.made == 1 else None,
            num_cached_tokens=0,
            metrics=SimpleNamespace(
                queued_ts=request.queued, scheduled_ts=request.queued, first_token_ts=now, num_preemptions=0
            ),
            outputs=[
                SimpleNamespace(
                    token_ids=[token],
                    finish_reason=reason,
                    logprobs=[_logprobs(token)] if "logprobs" in given else None,
                )
            ],
        )


def _misbehave(request: SimpleNamespace) -> None:
    if request.made != 1:
        return
    if request.first == DIE:
        os._exit(70)
    if request.first == HANG:
        time.sleep(3600)
    if request.first == RAISE:
        raise RuntimeError("this prompt is poison")


def _logprobs(token: int) -> dict[int, Any]:
    others = [(token + 2) % VOCABULARY, (token + 1) % VOCABULARY]
    return {token: SimpleNamespace(logprob=-0.5), **{each: SimpleNamespace(logprob=-2.0) for each in others}}


def _prompt_logprobs(request: SimpleNamespace) -> list[Any]:
    return [None, *(_logprobs(token) for token in request.context[1 : request.prompt])]
