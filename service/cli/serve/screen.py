"""The screen is the terminal that a server shares with the command that started it. The server's lines come through
here: above a moving status, and never inside an answer. It knows no server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.text import Text


class Screen:
    """Shows lines of `source` as they come, in a thread of its own, until its end."""

    def __init__(self, console: Console, source: IO[bytes]) -> None:
        self._console = console
        self._source = source
        self._lock = threading.Lock()
        self._waiting: list[bytes] | None = None
        self._thread = threading.Thread(target=self._pass_on, name="screen", daemon=True)
        self._thread.start()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps lines back while inside; they come out together at the end, in their order."""
        with self._lock:
            self._waiting = []
        try:
            yield
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting or [], None
                for line in waiting:
                    self._show(line)

    def finish(self, seconds: float) -> None:
        """Waits for the end of the source, so that the last lines are seen; at most `seconds`, since a process that
        outlives the server may keep it open."""
        self._thread.join(seconds)

    def _pass_on(self) -> None:
        for line in self._source:
            with self._lock:
                if self._waiting is None:
                    self._show(line)
                else:
                    self._waiting.append(line)

    def _show(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        self._console.print(Text.from_ansi(text.rsplit("\r", 1)[-1]), soft_wrap=True, highlight=False)
