"""The worker is our own engine process: `python -m service.engine.process.worker FD`, the loop around our core.

Only the runner's builder imports torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.kv_cache.offload import Offload
from service.engine.process.core import EngineCore, ModelRunner
from service.engine.process.loop import run_process
from service.engine.protocol.config import MIN_PREFILL_TOKENS, EngineConfig
from service.engine.protocol.messages import EngineInfo
from service.engine.protocol.work import ModelWork
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler

BuildRunner = Callable[[EngineConfig, Callable[[str, float], None]], tuple[ModelRunner, EngineInfo]]
"""(config, progress(phase, fraction)) -> the runner and the facts of the loaded engine."""


def build_core(config: EngineConfig, runner: ModelRunner, num_blocks: int, work: ModelWork | None = None) -> EngineCore:
    """Returns a core on the process's monotonic clock. `work` is as in EngineCore."""
    return EngineCore(runner, build_scheduler(config, runner, num_blocks), time.monotonic, work)


def build_scheduler(config: EngineConfig, runner: ModelRunner, num_blocks: int) -> Scheduler:
    """Returns a scheduler over the runner's blocks."""
    policy = BatchingPolicy(config.step_tokens, MIN_PREFILL_TOKENS, config.inter_token_latency_target, config.prefer)
    offload = Offload(runner.num_disk_blocks if config.prefix_caching else 0)
    size = config.block_size
    worth = partial(policy.block_seconds, block_size=size)
    blocks = BlockManager(num_blocks, size, config.prefix_caching, offload, worth, runner.windows())
    speculation = config.speculation and runner.verifies_drafts
    return Scheduler(
        blocks,
        policy,
        config.max_num_seqs,
        config.max_model_len,
        speculation,
        config.decoder_start,
        runner.draft_model,
    )


def main(prepare: Callable[[], BuildRunner], argv: list[str]) -> int:
    """Runs one engine process as `run_process` does, around the runner that `prepare` imports the builder of."""
    return run_process(lambda: partial(_built, prepare()), argv)


def _built(
    build: BuildRunner, config: EngineConfig, progress: Callable[[str, float], None]
) -> tuple[EngineCore, EngineInfo]:
    runner, info = build(config, progress)
    return build_core(config, runner, info.blocks_total, info.work), info


def _prepare() -> BuildRunner:
    """Imports torch, after `die_with_parent`, and where a failure is reported as Fatal."""
    from service.engine.runner.loading.building import build_runner

    return build_runner


if __name__ == "__main__":
    os._exit(main(_prepare, sys.argv))  # no interpreter teardown: libraries' threads must not delay the end
