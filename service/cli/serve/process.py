"""The server's process: `bentoml serve` as a child, in a process group of its own, and how it is ended. This module
knows no HTTP and shows nothing.

Ctrl-C at a terminal reaches the group of the command alone. So the command can say what it waits for before it ends the
child, and a second Ctrl-C can end all of the child's processes: BentoML's workers have sessions of their own, which no
signal of the terminal reaches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

SERVICE: Final = "service.bento:Dosirak"
ROOT: Final = Path(__file__).parents[3]
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""A closed terminal sends the latter, to the command alone."""


def serve_command(address: str, port: int, grace: float) -> list[str]:
    words = ["-m", "bentoml", "serve", SERVICE, "--host", address, "--port", str(port)]
    return [sys.executable, *words, "--timeout-graceful-shutdown", str(int(grace) or 1)]


def start(command: list[str], environment: Mapping[str, str], *, piped: bool) -> subprocess.Popen[bytes]:
    """Starts the child. Where `piped`, all that it writes comes out of its `stdout`. Raises OSError."""
    return subprocess.Popen(
        command,
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if piped else None,
        stderr=subprocess.STDOUT if piped else None,
        process_group=0,
    )


@contextlib.contextmanager
def drained_by_signals(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP end the child after its running answers."""

    def drain(_number: int, _frame: FrameType | None) -> None:
        child.terminate()

    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, drain) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(child: subprocess.Popen[bytes]) -> int:
    """Returns the child's status at its end. Raises KeyboardInterrupt at once: `Popen.wait` would swallow a second
    Ctrl-C that follows within a quarter of a second."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child.wait()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and every process that it has started, at once."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(child.pid).children(recursive=True)
        child.kill()  # first: it would start its workers again
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    child.wait()


def exit_status(returned: int) -> int:
    """Returns the command's status for the child's: 0 where a signal to end was obeyed."""
    return 0 if returned in (0, -signal.SIGTERM, -signal.SIGINT) else abs(returned)
