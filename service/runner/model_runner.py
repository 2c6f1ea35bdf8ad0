"""A batch → sampled tokens, and how a runner is built. Knows no queue, no clock of requests, no text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from models.loading import DTYPES, load_model, resolve_device, weight_bytes
from service.engine.messages import EngineConfig, EngineInfo
from service.engine.request import Batch, SampledToken, TokenLogprobs
from service.runner.attention import KV_TILE, matmul_dtype
from service.runner.decoder import FusedDecoder
from service.runner.foreign import Forward, PackedForward, PerSequenceForward, pin_rope
from service.runner.host import usable_cores
from service.runner.kv_cache import KVCache, LayerShape, bytes_per_block, choose_num_blocks, free_bytes
from service.runner.linear import (
    DenseLinear,
    Int8Linear,
    activation_reach,
    bmm_row_quantum,
    int8_kernel,
    release,
    row_quantum,
)
from service.runner.native.decoder import NativeDecoder
from service.runner.native.library import library
from service.runner.native.linear import NativeLinear
from service.runner.probe import choose_forward, observe
from service.runner.sampler import SamplerRow, sample, token_logprobs, verified
from service.runner.step import RowRules, Step, pack

Progress = Callable[[str, float], None]


class ModelRunner:
    """One model on one device, the only owner of its weights and KV tensors. One thread calls it."""

    def __init__(self, forward: Forward, cache: KVCache, rules: RowRules, device: torch.device) -> None:
        self._forward = forward
        self.cache = cache
        self._rules = rules
        self._device = device
        self.verifies_drafts = forward.invariant and device.type == "cpu"

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[SampledToken | None]:
        """Writes the keys and values of every scheduled token into its sequence's blocks, then samples. Parallel to
        `batch.scheduled`: a SampledToken where the item samples or has prompt logprobs to tell, else None. Changes no
        sequence. Behind drafts every row samples as if they were true; what follows the first untrue one is dropped.

        Prompt logprobs come with the row that predicts them: a step over prompt positions [a, b) tells those of the
        tokens a+1 .. b, so that all chunks together tell each prompt position from 1 on exactly once.
        """
        step = pack(batch, self.cache, self._rules, self._device)
        logits = self._forward(step)
        items = batch.scheduled
        rows = [row for item in items if item.samples for row in SamplerRow.of(item)]
        sampled = iter(sample(_sample_logits(logits, step), rows))
        results = [verified(item, sampled) if item.samples else None for item in items]
        for i, where in enumerate(step.where):
            if where.targets:
                top = items[i].sequence.request.params.prompt_logprobs or 0
                told = token_logprobs(logits[where.prompt.start : where.prompt.stop], where.targets, top)
                results[i] = _with_prompt(results[i], tuple(told))
        return results


def _sample_logits(logits: Tensor, step: Step) -> Tensor:
    """The rows to sample from, in the order of the items."""
    rows = [row for where in step.where for row in where.sample]
    if rows == list(range(len(rows))):
        return logits[: len(rows)]
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _with_prompt(token: SampledToken | None, told: tuple[TokenLogprobs, ...]) -> SampledToken:
    if token is None:
        return SampledToken(None, prompt_logprobs=told)
    return replace(token, prompt_logprobs=told)


def build_runner(config: EngineConfig, progress: Progress) -> tuple[ModelRunner, EngineInfo]:
    """Loads the model of `config.model_dir` and measures it. `progress` hears (phase, fraction of the whole).
    Raises OSError or ValueError for unusable files, CannotServe for an architecture that no forward fits, MemoryError
    when not one KV block fits."""
    started = time.monotonic()
    torch.set_num_threads(config.threads or usable_cores())
    device, dtype = resolve_device(config.device), DTYPES[config.dtype]
    progress("weights", 0.0)
    model = load_model(config.model_dir, config.precision, dtype, device, Int8Linear)
    pin_rope(model, config.max_model_len)
    progress("probe", 0.6)
    attention = model.config._attn_implementation
    reference = observe(model, device)
    release(model)
    cache = _make_cache(config, reference.shapes, dtype, device)
    progress("forward", 0.8)
    ways: tuple[Callable[[], Forward], ...] = (
        lambda: NativeDecoder(model, cache, config.max_model_len),
        lambda: FusedDecoder(model, config.max_model_len),
        lambda: PackedForward(model),
        lambda: PerSequenceForward(model, cache, attention),
    )
    precision = "int8" if config.precision == "int8" else config.dtype
    forward, passed_over = choose_forward(ways, reference, cache, precision)
    rules = _row_rules(forward.model, cache)
    progress("ready", 1.0)
    return ModelRunner(forward, cache, rules, device), _info(
        config, forward, cache, _kernels(config, forward, cache, rules) + passed_over, started
    )


def _make_cache(
    config: EngineConfig, shapes: tuple[LayerShape, ...], dtype: torch.dtype, device: torch.device
) -> KVCache:
    num_blocks = choose_num_blocks(
        config.kv_cache_bytes,
        bytes_per_block(shapes, config.block_size, dtype),
        config.max_num_seqs * config.max_model_len,
        config.block_size,
        max(0, free_bytes(device) - config.promised_bytes),
    )
    return KVCache(shapes, num_blocks, config.block_size, dtype, device)


def _row_rules(model: torch.nn.Module, cache: KVCache) -> RowRules:
    """Measured on the weights in use: kernels, and with them the paddings, differ by processor and shape."""
    weights: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, DenseLinear)):
            weights.append(module.weight)
        elif isinstance(module, Conv1D):
            weights.append(module.weight.T)
    compute, device = matmul_dtype(cache.dtype, cache.device), cache.device
    if device.type == "cpu" and library() is not None:
        return RowRules(row_quantum(weights), 1)
    products = {(shape.key_dim, KV_TILE) for shape in cache.shapes} | {(KV_TILE, s.value_dim) for s in cache.shapes}
    attention = max(bmm_row_quantum(depth, width, compute, device) for depth, width in products)
    return RowRules(row_quantum(weights), attention)


def _info(
    config: EngineConfig,
    forward: Forward,
    cache: KVCache,
    kernels: tuple[str, ...],
    started: float,
) -> EngineInfo:
    device = cache.device
    return EngineInfo(
        pid=os.getpid(),
        device=str(device),
        dtype=config.dtype,
        precision=config.precision,
        forward=forward.kind,
        kernels=kernels,
        threads=torch.get_num_threads(),
        memory_bytes=weight_bytes(forward.model),
        load_seconds=time.monotonic() - started,
        block_size=cache.block_size,
        blocks_total=cache.num_blocks,
        kv_bytes_per_block=bytes_per_block(cache.shapes, cache.block_size, cache.dtype),
    )


def _kernels(config: EngineConfig, forward: Forward, cache: KVCache, rules: RowRules) -> tuple[str, ...]:
    """Each `part: what computes it`, plainly."""
    device = cache.device
    native = library() if device.type == "cpu" else None
    if config.precision == "int8":
        kernel = int8_kernel(device)
        bits = f", {activation_reach().bit_length() + 1}-bit activations" if kernel == "onednn" else ""
        linear = f"linear: int8 {kernel}{bits}"
    elif any(isinstance(module, NativeLinear) for module in forward.model.modules()):
        linear = f"linear: {config.dtype} native"
    else:
        linear = f"linear: {config.dtype} torch, rows padded to {rules.linear}"
    compute = str(matmul_dtype(cache.dtype, device)).removeprefix("torch.")
    blocks = f"torch blocks {compute}" if native is None else "native blocks"
    attention = f"attention: {blocks}" if forward.invariant else "attention: library, per sequence"
    return (linear, attention, *(() if native is None else (f"native kernels: {native.level}",)))
