"""This module is a server without counters, for `loadtest.counters` to compare with: `uvicorn --factory
loadtest.uncounted:create`. As a program it is the engine process of that server.

What it leaves out: every observation of tokens, answers, requests and steps, and the engine's count of its work.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from service.engine.process import worker
from service.engine.process.work_done import WorkDone
from service.engine.sequences.tally import Tally


def create() -> Any:
    """Returns the app whose metrics stay at 0."""
    from service.app import create as counted
    from service.engine.client.client import EngineClient
    from service.observability.metrics import Metrics, ModelMetrics

    for kind, names in ((ModelMetrics, ("handed_out", "answered", "on_step")), (Metrics, ("http_request",))):
        for name in names:
            setattr(kind, name, _nothing)
    defaults = EngineClient.__init__.__kwdefaults__ or {}
    defaults["module"] = __name__
    return counted()


def _nothing(*arguments: object, **options: object) -> None:
    """Stands for an observation."""


if __name__ == "__main__":
    setattr(Tally, "add", _nothing)  # noqa: B010
    setattr(WorkDone, "add", _nothing)  # noqa: B010
    os._exit(worker.main(worker._prepare, sys.argv))
