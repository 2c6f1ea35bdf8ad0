"""The worker is a vLLM engine process: `python -m service.engine.vllm.worker FD`, the loop around vLLM's core.

It runs in an interpreter of its own, which has vLLM, msgspec and of this project the files that the standard library
suffices for. It knows no vLLM: `core` does, and is imported when the configuration is known. What vLLM reads from the
environment is in the environment that the process gets (`service.engine.kinds.kinds`).
"""

from __future__ import annotations

import os
import sys

from service.engine.process.heartbeat import Report
from service.engine.process.loop import Core, run_process
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import EngineInfo
from service.engine.vllm import ranks
from service.engine.vllm.releases import own_release, refusal


def build(config: EngineConfig, report: Report) -> tuple[Core, EngineInfo]:
    """Builds vLLM's core, which from then on ends with any of its ranks. Raises RuntimeError for a release that was not
    tested, before it is imported."""
    if refused := refusal(own_release()):
        raise RuntimeError(refused)
    report("importing vLLM", 0.0)
    from service.engine.vllm.core import build as build_core

    built = build_core(config, report)
    ranks.watch(report.end)
    return built


if __name__ == "__main__":
    os._exit(run_process(lambda: build, sys.argv))  # no interpreter teardown, as in `service.engine.process.worker`
