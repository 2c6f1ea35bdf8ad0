"""The worker is the process of one job, `python -m service.jobs.worker`. It reads the job from its standard input.

    stdin    {"kind", "arguments"}
    stdout   a line {"progress", "doing"} now and then, at last {"result"} or {"error"}

It dies with the server that started it, and has a lower priority than serving: the kernel does both.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any, Final

import msgspec

from models.errors import RepositoryError
from service.child_process import die_with_parent
from service.errors import DosirakError
from service.jobs.work import run, shortened
from service.settings import Settings

_NICE: Final = 10
_TELL_SECONDS: Final = 0.2


class Teller:
    """Writes lines for the server. It takes standard output for itself; all other output goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._told_at = 0.0

    def progress(self, fraction: float, doing: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            self.tell({"progress": fraction, "doing": doing})

    def tell(self, news: dict[str, Any]) -> None:
        self.write(msgspec.json.encode(news))

    def write(self, line: bytes) -> None:
        self._out.write(line + b"\n")
        self._out.flush()


def main() -> int:
    die_with_parent()
    os.nice(_NICE)
    teller = Teller()
    try:
        asked = msgspec.json.decode(sys.stdin.buffer.read())
        teller.tell({"result": run(asked["kind"], asked["arguments"], Settings(), teller.progress)})
    except (RepositoryError, DosirakError) as error:
        teller.tell({"error": shortened(str(error))})
    except Exception as error:  # the last chance to report the error to the server; the traceback is for its log
        traceback.print_exc()
        teller.tell({"error": shortened(f"{type(error).__name__}: {error}")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
