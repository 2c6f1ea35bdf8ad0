"""A terminal for tests: a program runs in it as for a user, and what it shows and does at Ctrl-C can be looked at.

>>> from tests.terminal import *; terminal = Terminal(["sh"]); terminal.type("echo hi\\n"); terminal.until("hi")
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path

CTRL_C = "\x03"
SECONDS = 120
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal the controlling one, so that Ctrl-C reaches the program's group."""


class Terminal:
    """Runs `command` at once. `shown` is all that it wrote, with its control characters. `size`: rows and columns."""

    def __init__(
        self,
        command: list[str],
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        if size:
            termios.tcsetwinsize(theirs, size)
        environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm", **(variables or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *command],
            cwd=cwd,
            env={name: value for name, value in environment.items() if value},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        """What is legible: without styles, and of a line that was written over, the last."""
        plain = ANSI.sub("\r", STYLE.sub("", self.shown.replace("\r\n", "\n")))
        return [re.sub("\r+", "\r", line).strip("\r").rsplit("\r", 1)[-1] for line in plain.split("\n")]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str) -> None:
        deadline = time.monotonic() + SECONDS
        while text not in self.shown:
            assert self.process.poll() is None or self._thread.is_alive(), f"it ended:\n{self.shown[-4000:]}"
            assert time.monotonic() < deadline, f"{text!r} was not shown:\n{self.shown[-4000:]}"
            time.sleep(0.02)

    def wait(self) -> int:
        """The exit status, when all that it wrote is there."""
        status = self.process.wait(SECONDS)
        self._thread.join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # no process has the terminal open any more
                return
            if not piece:
                return
            self.shown += decoder.decode(piece)
