"""An instance in a process of its own, with a scripted engine: `python -m tests.fake_instance DIRECTORY PORT DATABASE`.

Its answers are its own name, the directory's, a word a step. It ends as an instance does: at SIGTERM it takes no more
requests, and its running answers end first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from loadtest.bench.running import free_port
from service.engine.protocol.messages import Request
from service.storage.sessions import idempotency
from service.text.tokenizer import Tokenizer
from tests.fake_service import serving

STEP_SECONDS = 0.05
LEASE_SECONDS = 1.5
"""How long the other instance waits for a key whose request died; 10 in the product."""


class Instance:
    """The process of one instance; `start` after an end starts it again, on the same port."""

    def __init__(self, directory: Path, database: str) -> None:
        self.name, self.port = directory.name, free_port()
        self._command = [sys.executable, "-m", __spec__.name, str(directory), str(self.port), database]
        directory.mkdir()
        self._log = directory.with_suffix(".log")
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    @property
    def is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()[-2000:]
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def drain(self) -> None:
        """Ends it after its running answers, at once for new requests."""
        self.process.terminate()
        assert self.process.wait(30) in (0, -signal.SIGTERM), self._log.read_text()[-2000:]


@contextmanager
def two_instances(directory: Path, database: str) -> Iterator[list[Instance]]:
    """Yields `one` and `two`, which may not be ready yet; ends them at exit."""
    instances = [Instance(directory / name, database) for name in ("one", "two")]
    try:
        yield instances
    finally:
        for each in instances:
            each.kill()


async def main(directory: Path, port: int, database: str) -> None:
    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(f" {directory.name}", add_special_tokens=False)

    vars(idempotency)["LEASE_SECONDS"] = LEASE_SECONDS
    engine = {"script": script, "step_seconds": STEP_SECONDS}
    async with serving(directory, engine=engine, database_url=database, admin_key="key") as world:
        config = uvicorn.Config(world.app, port=port, log_level="error", lifespan="off")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
    os._exit(0)
