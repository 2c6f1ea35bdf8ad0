"""A running system is started, gets waves and is ended. It is a driver with a pipe, or a server with HTTP.

The client of servers is a socket and `readline`: it reads the time of every event and parses only after the wave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import psutil

from loadtest.bench.wave import Asked, Told, check

ROOT: Final = Path(__file__).parent.parent.parent
START_SECONDS: Final = 300.0
END_SECONDS: Final = 15.0
LINE_BYTES: Final = 1 << 26
HOST: Final = "Host: 127.0.0.1\r\n"
"""A server without a key answers requests that name its own machine, and no others."""
REST_SECONDS: Final = 60.0
"""The longest wait for a server to rest; one that polls all the time is measured as it is."""
REST_GLANCE: Final = 1.0
REST_SHARE: Final = 0.1
"""Of one core: a server that computes less rests."""

T = TypeVar("T")


class Failed(Exception):
    """A system did not start, or did not answer; the text says what it last said."""


class Running(Protocol):
    ready_seconds: float

    async def wave(self, asked: Sequence[Asked]) -> list[Told]:
        """All answers, whole. Raises Failed."""
        ...

    def resident(self) -> int:
        """Bytes resident now, of all its processes."""
        ...

    async def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Launch:
    """A command with its environment; `log` takes what it prints."""

    command: Sequence[str]
    log: Path
    variables: Mapping[str, str]

    async def start(self, piped: bool) -> asyncio.subprocess.Process:
        """`piped`: its standard input and output are ours; else it has none and the log takes all."""
        with self.log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *self.command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.variables},
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else output,
                stderr=output,
                limit=LINE_BYTES,
                start_new_session=True,
            )

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-500:]


class Driven:
    """A driver of `loadtest.peers`, over its standard input and output."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        self._launch, self._process = launch, process
        self.ready_seconds = 0.0

    @classmethod
    async def start(cls, launch: Launch) -> Driven:
        started = time.perf_counter()
        driven = cls(launch, await launch.start(piped=True))
        try:
            async with asyncio.timeout(START_SECONDS):
                await driven._read()
        except BaseException:
            await driven.end()
            raise
        driven.ready_seconds = time.perf_counter() - started
        return driven

    async def wave(self, asked: Sequence[Asked]) -> list[Told]:
        assert self._process.stdin is not None
        line = json.dumps({"requests": [asdict(each) for each in asked]})
        self._process.stdin.write(line.encode() + b"\n")
        answer = await self._read()
        rows = zip(asked, answer["times"], answer["token_ids"], strict=True)
        told = [Told(question.at, times, token_ids) for question, times, token_ids in rows]
        check(asked, told)
        return told

    async def predict(self, texts: Sequence[Sequence[int]], folder: Path) -> None:
        """Writes the logits of each text into `folder`, as a driver's `write_predictions` does. Raises Failed where the
        driver tells none."""
        assert self._process.stdin is not None
        line = json.dumps({"texts": [list(text) for text in texts], "folder": str(folder)})
        self._process.stdin.write(line.encode() + b"\n")
        answer = await self._read()
        if "error" in answer:
            raise Failed(str(answer["error"]))

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise Failed(f"its process ended: {self._launch.last_words()}")
        read: dict[str, Any] = json.loads(line)
        return read

    def resident(self) -> int:
        return family_resident(self._process.pid)

    async def end(self) -> None:
        await end(self._process)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server is asked, and what of a line's JSON is its token ids, given how many came before. Lines that tell
    tokens begin with `prefix`."""

    ready_path: str
    path: str
    body: Callable[[Asked], dict[str, object]]
    token_ids: Callable[[Any, int], list[int]]
    prefix: bytes = b"data:"


class Served:
    """A server on a port of this machine, streamed from over one connection a request."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, dialect: Dialect, port: int) -> None:
        self._launch, self._process, self._dialect, self._port = launch, process, dialect, port
        self.ready_seconds = 0.0

    @classmethod
    async def start(cls, launch: Launch, dialect: Dialect, port: int, patience: float = START_SECONDS) -> Served:
        started = time.perf_counter()
        served = cls(launch, await launch.start(piped=False), dialect, port)
        try:
            async with asyncio.timeout(patience):
                while not await served._ready():  # noqa: ASYNC110 - another process's state
                    await asyncio.sleep(0.05)
        except TimeoutError:
            await served.end()
            raise Failed(f"not ready within {patience:.0f} s: {launch.last_words()}") from None
        except BaseException:
            await served.end()
            raise
        served.ready_seconds = time.perf_counter() - started
        await rest(lambda: family_seconds(served.pid))
        return served

    async def _ready(self) -> bool:
        if self._process.returncode is not None:
            raise Failed(f"its process ended: {self._launch.last_words()}")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.write(f"GET {self._dialect.ready_path} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode())
        status = await reader.readline()
        writer.close()
        return b" 200 " in status

    async def wave(self, asked: Sequence[Asked]) -> list[Told]:
        started = time.perf_counter()
        told = await asyncio.gather(*(self._ask(each, started) for each in asked))
        check(asked, told)
        return told

    async def _ask(self, asked: Asked, started: float) -> Told:
        payload = json.dumps(self._dialect.body(asked)).encode()
        head = f"POST {self._dialect.path} HTTP/1.1\r\n{HOST}Content-Type: application/json\r\n"
        head += f"Connection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
        await asyncio.sleep(max(0.0, started + asked.at - time.perf_counter()))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=LINE_BYTES)
        writer.write(head.encode() + payload)
        lines = []
        with contextlib.closing(writer):
            status = await reader.readline()
            while line := await reader.readline():
                lines.append((time.perf_counter() - started, line))
        if b" 200 " not in status:
            raise Failed(f"{status.decode().strip()}: {lines[-1][1][:300]!r}" if lines else "the connection was cut")
        return self._read(asked, lines)

    def _read(self, asked: Asked, lines: Sequence[tuple[float, bytes]]) -> Told:
        times: list[float] = []
        token_ids: list[int] = []
        for at, line in lines:
            if line.startswith(self._dialect.prefix):
                new = self._dialect.token_ids(json.loads(line.removeprefix(b"data:")), len(token_ids))
                token_ids += new
                times += [at] * len(new)
        return Told(asked.at, times, token_ids)

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident(self) -> int:
        return family_resident(self._process.pid)

    def engine_resident(self) -> int:
        """Bytes resident of the largest of its processes: of ours, the engine."""
        return max(process.memory_info().rss for process in family(self._process.pid))

    async def end(self) -> None:
        await end(self._process)


def family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def family_resident(pid: int) -> int:
    return sum(_each(pid, lambda process: process.memory_info().rss))


def family_seconds(pid: int) -> float:
    """Returns the processor seconds of a process and its children so far."""
    return sum(_each(pid, lambda process: sum(process.cpu_times()[:2])))  # of its own, in user and in system mode


def _each(pid: int, measured: Callable[[psutil.Process], T]) -> Iterator[T]:
    """Yields what is measured of a process and its children, of those that still live."""
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield measured(process)


async def rest(taken: Callable[[], float], glance: float = REST_GLANCE, patience: float = REST_SECONDS) -> None:
    """Waits until a server hardly computes, by the processor seconds that it has `taken` so far. What a start still
    does, as our first answer at the console, would slow the first work down."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            before, busy = taken(), True
            while busy:
                await asyncio.sleep(glance)
                now = taken()
                before, busy = now, now - before > REST_SHARE * glance


async def end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL to whatever of it is left: nothing may take cores from the next system."""
    members = family(process.pid)
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    await process.wait()


def free_port() -> int:
    """Returns a port below those that the system gives away by itself: only the server that it is for gets it."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)  # tests seed the others, in all processes alike
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
