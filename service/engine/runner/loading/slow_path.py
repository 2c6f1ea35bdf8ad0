"""A slow path is a forward that serves because a faster one was refused. Its cost is measured at load: one decode step
beside the time in which memory gives the weights of one."""

from __future__ import annotations

import time
from typing import Final

import torch

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.protocol.work import ModelWork, Peaks, SlowPath
from service.engine.runner.forwards.forward import Forward
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.forwards.step import RowRules, pack
from service.engine.runner.kv_cache import KVCache
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence

STEPS: Final = 4


def slow_path(
    forward: Forward, cache: KVCache, rules: RowRules, reasons: tuple[str, ...], work: ModelWork, peaks: Peaks | None
) -> SlowPath | None:
    """Returns the slow path that a forward is, for these `reasons` against the ways before it; None if it is none. On a
    GPU our decoder in torch's operations is the fast one."""
    fastest = isinstance(forward, NativeDecoder) or (cache.device.type != "cpu" and forward.kind == "decoder")
    if fastest or not reasons:
        return None
    moved = work.layer_bytes + work.head_bytes + work.active_expert_bytes
    feed = moved / peaks.bytes_per_second if peaks is not None and moved else 0.0
    return SlowPath(reasons=reasons, step_seconds=_step_seconds(forward, cache, rules), weights_seconds=feed)


@torch.inference_mode()
def _step_seconds(forward: Forward, cache: KVCache, rules: RowRules) -> float:
    """Returns the time of a decode step of one sequence: the least of some, because others may use the host."""
    sequence = Sequence.of(Request("probe", (1,), SamplingParams(max_tokens=1)), (), cache.block_size)
    cache.lend(sequence, 1)
    seconds = []
    for _ in range(STEPS):
        step = pack(Batch((Scheduled(sequence, 1),)), cache, rules, cache.device)
        started = time.perf_counter()
        forward(step).cpu()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
