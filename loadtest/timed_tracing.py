"""This module is a server that times its own tracing, for `loadtest.tracing`: `uvicorn --factory
loadtest.timed_tracing:create`.

After each export it writes to the file TIMED_TRACING how many spans were sent, and the seconds of processor time that
its threads took to make, encode and send them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FILE: Final = "TIMED_TRACING"


class Timed:
    """Calls whose processor time is summed, of one thread each."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - began

        return timed


def create() -> Any:
    """Returns the app."""
    from service.api.edge import layer as edge
    from service.api.edge import spans
    from service.app import create as app
    from service.observability.tracing.exporting import CountedExporter, Exporting

    recorded, sent, count = Timed(), Timed(), 0
    setattr(edge, "span_of", recorded.wrap(spans.span_of))  # noqa: B010
    setattr(Exporting, "record", recorded.wrap(Exporting.record))  # noqa: B010
    export = sent.wrap(CountedExporter.export)

    def told(exporter: CountedExporter, batch: Any) -> Any:
        nonlocal count
        result = export(exporter, batch)
        count += len(batch)
        Path(os.environ[FILE]).write_text(json.dumps({"spans": count, "seconds": recorded.seconds + sent.seconds}))
        return result

    setattr(CountedExporter, "export", told)  # noqa: B010
    return app()
