"""A rank is a process of vLLM's that has a part of the model; vLLM imports this module in each of them, and in nothing
else (`worker_extension_cls`), before it reads weights.

From then on the kernel kills the rank when its engine's process dies: a rank that waits for another one in shared
memory would notice nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from service.host import die_with_parent


class Rank:
    """What each rank has besides its own methods, for `collective_rpc`."""

    model_runner: Any

    def prepare_stage(self) -> None:
        """Makes the buffers of a pipeline's later stages. vLLM 0.32 makes them in a first pass, which it leaves out
        on CPUs where nothing is compiled; then the first step would fail."""
        if getattr(self.model_runner, "intermediate_tensors", ()) is None:
            self.model_runner._dummy_run(1)


engine = multiprocessing.parent_process()
if engine is not None:
    die_with_parent()
    if not engine.is_alive():  # it died before the call
        os._exit(0)
