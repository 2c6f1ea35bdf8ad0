"""An engine process is started, written to, read from and ended here, on the parent's side.

This module knows frames and a process id. It knows no requests, no streams, and not why the process is wanted.

The engine stays in its parent's process group, so a signal to the group reaches it (it ignores SIGINT and SIGTERM, see
`worker`). The kernel kills the engine when the *thread* that started it ends. So start engines from the event loop's
thread, which lives as long as the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from service.engine.protocol.config import EngineConfig
from service.engine.protocol.frames import FrameReader, decode_from_engine, encode
from service.engine.protocol.messages import FromEngine, Start, ToEngine

WORKER: Final = "service.engine.process.worker"
_EXIT_SECONDS: Final = 2.0  # from the end of the socket to the end of the process


@dataclass(frozen=True, slots=True)
class Started:
    """A process that imports what every engine needs and waits for its configuration, and our end of its socket."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    @classmethod
    def of(cls, module: str, env: Mapping[str, str] | None = None, interpreter: str = sys.executable) -> Started:
        """Starts `interpreter -m module FD` with `env` (None: the parent's). Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = (interpreter, "-m", module, str(theirs.fileno()))
        try:
            with theirs:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=env)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return cls(process, ours)

    async def end(self) -> None:
        """Ends an unwanted process: closes its socket, which ends it, and kills it if that fails."""
        self.socket.close()
        exited = asyncio.ensure_future(_exited(self.process))
        await asyncio.wait({exited}, timeout=_EXIT_SECONDS)
        if not exited.done():
            _kill(self.process)
        await exited


class EngineProcess:
    """Owns one process and its socket. Make it with `load`; call `kill` and await `wait` when done."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: _Pipe) -> None:
        self._process = process
        self._pipe = pipe
        self._exit = asyncio.ensure_future(self._watch())

    @classmethod
    async def load(
        cls, started: Started, config: EngineConfig, on_message: Callable[[FromEngine], None]
    ) -> EngineProcess:
        """Tells a process to load `config`. `on_message` is called in the event loop for every frame, in order, and
        never after `wait` has returned."""
        loop = asyncio.get_running_loop()
        try:
            _, pipe = await loop.create_unix_connection(lambda: _Pipe(on_message), sock=started.socket)
        except BaseException:
            await started.end()
            raise
        engine = cls(started.process, pipe)
        engine.send(Start(config))
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Sends a message and never blocks: bytes that the socket does not take at once wait in memory. Drops the
        message once the process is gone."""
        self._pipe.write(encode(message))

    @property
    def is_running(self) -> bool:
        """Whether the process still runs, by the kernel. `wait` may return a moment later. It leaves the exit code to
        the thread that waits for it."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def kill(self) -> None:
        """Sends SIGKILL. No-op on a process that has ended."""
        _kill(self._process)

    async def wait(self) -> int:
        """Returns the exit code (-9 after SIGKILL), once every frame of the process was handed on. Any number of tasks
        may wait."""
        return await asyncio.shield(self._exit)

    async def _watch(self) -> int:
        exited = asyncio.ensure_future(_exited(self._process))
        closed = asyncio.ensure_future(self._pipe.closed.wait())
        await asyncio.wait({exited, closed}, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():  # it closed its socket, so it is of no more use
            await asyncio.wait({exited}, timeout=_EXIT_SECONDS)
            if not exited.done():
                self.kill()
        code = await exited
        await asyncio.wait({closed}, timeout=_EXIT_SECONDS)  # frames still on their way
        closed.cancel()
        self._pipe.close()
        return code


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # Popen.kill would take the exit code from the thread that waits for it
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def _exited(process: subprocess.Popen[bytes]) -> int:
    """Returns the exit code. A thread of its own sleeps in the kernel, because a pool's thread must not wait so
    long."""
    loop = asyncio.get_running_loop()
    code: asyncio.Future[int] = loop.create_future()

    def tell() -> None:
        if not code.done():
            code.set_result(process.returncode)

    def wait() -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name=f"engine {process.pid}", daemon=True).start()
    return await code


class _Pipe(asyncio.Protocol):
    """The parent's end of the socket pair. A broken stream of frames ends the connection."""

    def __init__(self, on_message: Callable[[FromEngine], None]) -> None:
        self.closed = asyncio.Event()
        self._on_message = on_message
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by duck typing

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._on_message(decode_from_engine(body))
        except (ValueError, msgspec.DecodeError):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed.set()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
