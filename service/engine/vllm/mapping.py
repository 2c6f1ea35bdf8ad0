"""This module says in vLLM's words what an engine's configuration and a request mean. It is arithmetic; it imports no
vLLM.

vLLM knows no request that goes on where another process ended. A replay is a new request: its prompt is the prompt and
what was given out, and its numbers are what is left. Greedy answers go on as before. A sampled answer goes on with
a seed of (seed, position), as another draw of the same distribution. Penalties of an answer's own tokens (`frequency`,
`presence`) would take what was given out for prompt: such a request cannot go on (`can_go_on`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import (
    AGEING_SECONDS,
    MIN_TEMPERATURE,
    NEUTRAL,
    FinishReason,
    Limit,
    Request,
    TokenLogprobs,
)

DTYPES: Final = {"bf16": "bfloat16", "fp32": "float32"}
FINISHED: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
MAX_LOGPROBS: Final = 20
PENALTIES: Final = ("repetition_penalty", "frequency_penalty", "presence_penalty")
FILTERS: Final = ("top_p", "top_k", "min_p")
LIMITS: Final = (
    *(
        Limit(name, neutral, neutral)
        for name, neutral in NEUTRAL.items()
        if name not in ("temperature", *PENALTIES, *FILTERS)
    ),
    Limit("temperature", 0.0, 2.0),
    Limit("frequency_penalty", -2.0, 2.0),
    Limit("presence_penalty", -2.0, 2.0),
)
"""Of vLLM's sampling parameters, as its 0.32 checks them; those that it does not have are off."""
BACKGROUND: Final = 1 << 53
"""The priority of vLLM that background work begins at: later than any client's millisecond."""
RANK: Final = "service.engine.vllm.rank.Rank"
"""What vLLM's ranks get besides their own methods, by name: vLLM imports it in each of them."""
_MULTIPROCESSING: Final = "mp"
_SEED_BITS: Final = 63


class Logprob(Protocol):
    """vLLM's logprob of a token."""

    logprob: float


def num_ranks(config: EngineConfig) -> int:
    """Returns the processes that share the model, on all nodes."""
    return config.options.get("tensor_parallel", 1) * config.options.get("pipeline_parallel", 1)


def has_stages(config: EngineConfig) -> bool:
    """Returns whether the layers are divided among ranks that we have a hand in (`rank.Rank`)."""
    return config.options.get("pipeline_parallel", 1) > 1 and config.executor == _MULTIPROCESSING


def engine_arguments(config: EngineConfig, model_dir: str, kv_bytes: int) -> dict[str, Any]:
    """Returns the arguments of vLLM's `EngineArgs`. `model_dir` holds the weights as vLLM reads them; `kv_bytes`, of
    each rank, 0 lets vLLM choose."""
    options = config.options
    adapters = options.get("max_loras", 0)
    arguments: dict[str, Any] = {
        "model": model_dir,
        "dtype": DTYPES[config.dtype],
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": max(config.max_num_batched_tokens, config.max_num_seqs),
        "enable_prefix_caching": config.prefix_caching,
        "scheduling_policy": "priority",
        "max_logprobs": MAX_LOGPROBS,
        "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm",
        "tensor_parallel_size": options.get("tensor_parallel", 1),
        "pipeline_parallel_size": options.get("pipeline_parallel", 1),
        "enforce_eager": bool(options.get("enforce_eager", 0)),
        "enable_lora": bool(adapters),
        "enable_logging_iteration_details": True,
        "disable_log_stats": False,
    }
    if config.executor != _MULTIPROCESSING:
        arguments["distributed_executor_backend"] = config.executor
    elif num_ranks(config) > 1:
        arguments |= {"distributed_executor_backend": _MULTIPROCESSING, "worker_extension_cls": RANK}
    if kv_bytes:
        arguments["kv_cache_memory_bytes"] = kv_bytes
    if adapters:
        arguments |= {"max_loras": adapters, "max_lora_rank": options["max_lora_rank"]}
    return arguments


def node_arguments(count: int, rank: int, head: str, port: int) -> dict[str, Any]:
    """Returns the further arguments of one of `count` hosts; vLLM's store is at the head."""
    return {"nnodes": count, "node_rank": rank, "master_addr": head, "master_port": port}


def can_go_on(request: Request) -> bool:
    """Returns whether a request that another process had can go on here."""
    params = request.params
    return not request.emitted or (params.frequency_penalty == 0 and params.presence_penalty == 0)


def prompt(request: Request) -> dict[str, Any]:
    """Returns vLLM's prompt. Its salts are short texts; an empty one is no salt."""
    inputs: dict[str, Any] = {"prompt_token_ids": [*request.token_ids, *request.emitted]}
    if request.cache_salt:
        inputs["cache_salt"] = hashlib.sha256(request.cache_salt.encode()).hexdigest()
    return inputs


def sampling(request: Request) -> dict[str, Any]:
    """Returns the arguments of vLLM's `SamplingParams`, for what is left of the request. vLLM always samples a token;
    where none is wanted, one is asked for, and the caller drops it."""
    params, done = request.params, len(request.emitted)
    greedy = params.temperature < MIN_TEMPERATURE or params.top_p == 0
    max_tokens = max(1, params.max_tokens - done)
    arguments: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": min(max(0, params.min_tokens - done), max_tokens),
        "temperature": 0.0 if greedy else params.temperature,
        **{name: getattr(params, name) for name in PENALTIES},
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,
        "detokenize": False,
    }
    if not greedy:
        arguments |= {name: getattr(params, name) for name in FILTERS} | {"seed": seed(request)}
    if params.logit_bias:
        arguments["logit_bias"] = dict(params.logit_bias)
    if params.logprobs is not None:
        arguments["logprobs"] = params.logprobs
    if params.prompt_logprobs is not None and not (request.emitted or request.emitted_prompt_logprobs):
        arguments["prompt_logprobs"] = params.prompt_logprobs
    return arguments


def seed(request: Request) -> int:
    """Returns the request's own seed, and behind tokens that were given out one of (seed, position)."""
    if not request.emitted:
        return request.params.seed
    text = f"{request.params.seed}:{len(request.emitted)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> (64 - _SEED_BITS)


def priority(request: Request) -> int:
    """Returns vLLM's priority, where less comes first. vLLM takes it once, so it is the millisecond of the arrival, and
    each priority counts as AGEING_SECONDS of waiting: of two requests that wait, time gains both the same. Background
    work gains nothing."""
    if request.priority < 0:
        return BACKGROUND - request.priority
    return round(1000 * (request.arrival - AGEING_SECONDS * request.priority))


def logprobs(
    token_ids: Iterable[int], positions: Iterable[Mapping[int, Logprob] | None], most: int
) -> tuple[TokenLogprobs, ...]:
    """Returns the logprobs of tokens: vLLM gives those of the likeliest and of the token itself, in no order that it
    promises."""
    return tuple(
        _position(token_id, known, most)
        for token_id, known in zip(token_ids, positions, strict=True)
        if known is not None
    )


def _position(token_id: int, known: Mapping[int, Logprob], most: int) -> TokenLogprobs:
    likeliest = sorted(((id, each.logprob) for id, each in known.items()), key=lambda item: (-item[1], item[0]))
    return TokenLogprobs(known[token_id].logprob, tuple(likeliest[:most]))


def prompt_logprobs(
    request: Request, positions: Sequence[Mapping[int, Logprob] | None] | None
) -> tuple[TokenLogprobs, ...]:
    """Returns the logprobs of the prompt from `prompt_logprobs_start` on; vLLM gives those of every position."""
    most, first = request.params.prompt_logprobs, max(1, request.params.prompt_logprobs_start)
    if most is None or not positions:
        return ()
    return logprobs(request.token_ids[first:], positions[first : len(request.token_ids)], most)
