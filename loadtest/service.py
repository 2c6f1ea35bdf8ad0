"""This module runs a server for load tests that end it: one after the other on the same data and port."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from loadtest.alternating import end_on_sigterm
from loadtest.bench.running import free_port

START_SECONDS: Final = 400.0
BENTOML: Final = ("-m", "bentoml", "serve", "service.bento:Dosirak", "--host", "127.0.0.1", "--port")
UVICORN: Final = ("-m", "uvicorn", "--factory", "service.app:create", "--log-level", "error", "--port")
"""Without BentoML's supervisor: it starts in less time."""


class Service:
    """One server after the other on the same data; `is_up` until it is ended."""

    def __init__(
        self,
        data_dir: Path,
        database: str = "",
        settings: Mapping[str, str] | None = None,
        server: Sequence[str] = BENTOML,
    ) -> None:
        """`settings` are variables of the server's environment, before ours."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_dir = data_dir
        self.log = data_dir.with_suffix(".log")
        self.is_up = False
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, *server, str(self.port)]
        self._environment = {
            **os.environ,
            "DOSIRAK_DATA_DIR": str(data_dir),
            "BENTOML_HOME": str(data_dir),
            "BENTOML_DO_NOT_TRACK": "true",
            "DOSIRAK_THREADS": "1",
            "DOSIRAK_IDLE_REPORTS": "false",
            **({"DOSIRAK_DATABASE_URL": database} if database else {}),
            **(settings or {}),
        }

    @property
    def pid(self) -> int:
        """Returns the id of the server's first process; only valid after a start."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Returns that of the last process that was begun; None while it runs."""
        return self._process.poll() if self._process else None

    def begin(self) -> None:
        """Starts the server, and does not wait for it."""
        end_on_sigterm()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    async def start(self, client: aiohttp.ClientSession) -> None:
        """Starts the server. Raises RuntimeError if it does not become ready."""
        self.begin()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.exit_status is None:
            with suppress(aiohttp.ClientError):
                async with client.get(f"{self.url}/readyz") as response:
                    if response.status == 200:
                        self.is_up = True
                        return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the server did not become ready; its log ends with\n{self.log.read_text()[-2000:]}")

    def family(self) -> list[psutil.Process]:
        """Returns the server's processes; none where it has ended."""
        if self.exit_status is not None or self._process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        return []

    async def kill(self) -> list[psutil.Process]:
        """Kills the server and all its processes at once. Returns those that were killed, once all have ended."""
        self.is_up = False
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process:
            await asyncio.to_thread(self._process.wait, 30)  # the first to wait for our child gets its exit status
        await asyncio.to_thread(psutil.wait_procs, family, timeout=30)
        return [process for process in family if not process.is_running()]

    def terminate(self) -> None:
        """Sends SIGTERM to the first process, as a supervisor of services does."""
        self.is_up = False
        assert self._process is not None
        self._process.terminate()
