"""The worker is the process of one job, `python -m service.evaluation.jobs.worker`. It reads the job from its standard
input.

    stdin    {"kind", "arguments", "awaited"?: true where a person waits for it and no server runs beside it}
    stdout   a line {"progress", "doing"} now and then, at last {"result"} or {"error"}

It dies with the process that started it, and has a lower priority than serving unless it is awaited: the kernel does
both.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any, Final

import msgspec

from models.errors import RepositoryError
from service.errors import DosirakError, NoEngine
from service.evaluation.jobs.work import run, shortened
from service.host import die_with_parent, has_torch
from service.settings import Settings

_NICE: Final = 10
_SEND_SECONDS: Final = 0.2


class ProgressWriter:
    """Writes lines for the server. It takes standard output for itself; all other output goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._sent_at = 0.0

    def progress(self, fraction: float, doing: str) -> None:
        now = time.monotonic()
        if now - self._sent_at >= _SEND_SECONDS:
            self._sent_at = now
            self.send({"progress": fraction, "doing": doing})

    def send(self, line: dict[str, Any]) -> None:
        self.write(msgspec.json.encode(line))

    def write(self, line: bytes) -> None:
        self._out.write(line + b"\n")
        self._out.flush()


def main() -> int:
    die_with_parent()
    writer = ProgressWriter()
    try:
        job = msgspec.json.decode(sys.stdin.buffer.read())
        os.nice(0 if job.get("awaited") else _NICE)
        writer.send({"result": run(job["kind"], job["arguments"], Settings(), writer.progress)})
    except (RepositoryError, DosirakError) as error:
        writer.send({"error": shortened(str(error))})
    except Exception as error:  # the last chance to report the error to the server; the traceback is for its log
        traceback.print_exc()
        writer.send({"error": shortened(_unexpected(error))})
    return 0


def _unexpected(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and not has_torch():
        return NoEngine().message
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
