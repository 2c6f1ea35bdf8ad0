"""`python -m tests.slow_worker FD`: the real engine process with a slow operator planted beside its sampler."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from service.engine.process.worker import BuildRunner, main
from service.engine.runner.sampling.sampler import Sampler

PLANTED = "aten::lgamma"
_NUMBERS = torch.rand(400_000, generator=torch.Generator().manual_seed(0))


def slowed(sample: Callable[..., Any]) -> Callable[..., Any]:
    def slow_sample(*args: Any, **kwargs: Any) -> Any:
        torch.lgamma(_NUMBERS)
        return sample(*args, **kwargs)

    return slow_sample


def prepare() -> BuildRunner:
    from service.engine.runner.loading.building import build_runner

    Sampler.sample = slowed(Sampler.sample)  # type: ignore[method-assign]
    return build_runner


if __name__ == "__main__":
    os._exit(main(prepare, sys.argv))
