"""One engine process as its parent sees it: started, written to, read from, ended.

Frames and a process id; nothing here knows requests, streams or why the process is wanted.

The engine stays in its parent's process group, so that whoever signals the group reaches it (it ignores SIGINT and
SIGTERM, see `worker`), and the kernel kills it when the *thread* that started it ends: start engines from the thread
that lives as long as the service, the one of its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from service.engine.messages import EngineConfig, FrameReader, FromEngine, Start, ToEngine, decode_from_engine, encode

_EXIT_SECONDS: Final = 2.0  # between the end of the socket and the end of the process


class EngineProcess:
    """Owns one process and its socket. Use `spawn`; call `kill` and await `wait` when done."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: _Pipe) -> None:
        self._process = process
        self._pipe = pipe
        self._exit = asyncio.ensure_future(self._watch())

    @classmethod
    async def spawn(
        cls,
        module: str,
        config: EngineConfig,
        on_message: Callable[[FromEngine], None],
        env: Mapping[str, str] | None = None,
    ) -> EngineProcess:
        """`python -m module FD` with `env` (None: the parent's), told to load `config`.

        `on_message` is called in the event loop for every frame, in order, and never after `wait` has returned.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                command = (sys.executable, "-m", module, str(theirs.fileno()))
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=env
                )
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, pipe = await loop.create_unix_connection(lambda: _Pipe(on_message), sock=ours)
        except BaseException:
            ours.close()
            raise
        engine = cls(process, pipe)
        engine.send(Start(config))
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Never blocks: what the socket does not take at once waits in memory. Dropped once the process is gone."""
        self._pipe.write(encode(message))

    def kill(self) -> None:
        """SIGKILL; no-op on a process that has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """The exit code (-9 after SIGKILL), once every frame it had sent was handed on. Any number may wait."""
        return await asyncio.shield(self._exit)

    async def _watch(self) -> int:
        exited = asyncio.ensure_future(self._process.wait())
        closed = asyncio.ensure_future(self._pipe.closed.wait())
        await asyncio.wait({exited, closed}, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():  # it closed its socket: it is of no more use, whatever it still does
            await asyncio.wait({exited}, timeout=_EXIT_SECONDS)
            self.kill()
        code = await exited
        await asyncio.wait({closed}, timeout=_EXIT_SECONDS)  # frames still on their way
        closed.cancel()
        self._pipe.close()
        return code


class _Pipe(asyncio.Protocol):
    """The parent's end of the socket pair. A stream that is not ours ends the connection."""

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
