"""The loop of an engine process: its end of the socket, and inbox, step, news around a core.

FD is one end of a connected AF_UNIX socket pair. The first frame in is Start. Then the process sends Loading frames,
Ready, and one Step frame for each step with news. The loop knows no asyncio, no text, no tensors, and not whose core
computes the steps.

Four events end the process: Shutdown and no work left (exit 0), the close of the socket's other end (exit 0 at the
next step boundary), its parent's death (SIGKILL from the kernel, at once, also in the middle of a step or a load), and
an exception (Fatal frame, exit 1). The process ignores SIGINT and SIGTERM: Ctrl-C and service managers signal the whole
group, and only the parent knows which answers must still be finished. The parent closes the socket, or kills, when
done.
"""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from service import host
from service.engine.process.adapter_loading import AdapterLoader, Attach, describe
from service.engine.process.grammar_loading import CompiledGrammars, GrammarLoader
from service.engine.process.heartbeat import Pulse, Report
from service.engine.process.profiler import ProfiledEngine, Profiler
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.frames import HEADER_BYTES, FrameReader, decode_to_engine, encode
from service.engine.protocol.messages import (
    Abort,
    AdapterLoaded,
    Add,
    EngineInfo,
    Fatal,
    FromEngine,
    LoadAdapter,
    Profile,
    Ready,
    Request,
    Shutdown,
    Start,
    Step,
    StepRecord,
    ToEngine,
    UnloadAdapter,
)

_NEWS_SECONDS: Final = 0.25  # steps without outputs send their stats this often
_READ_BYTES: Final = 1 << 20


class Core(ProfiledEngine, Protocol):
    """What computes the steps of an engine process. One thread calls it, where nothing else is said."""

    grammars: CompiledGrammars

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None:
        """Queues a request. One that it cannot compute ends with ERROR in the next step's outputs."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests now; the next step's outputs report the ends."""
        ...

    def keep_adapter(self, name: str) -> bool:
        """Returns whether an adapter is loaded. If so, it stays."""
        ...

    def read_adapter(self, name: str, directory: str) -> Attach:
        """Reads an adapter, in any thread. Returns the call that attaches it between two steps."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Frees an adapter once no request uses it."""
        ...

    def forecast_seconds(self) -> float | None:
        """Returns the forecast of the step in progress, if there is one. Any thread may call it."""
        ...

    def take_steps(self) -> tuple[StepRecord, ...]:
        """Returns the computed steps since the last call, oldest first, the newest MAX_STEPS at most."""
        ...


BuildCore = Callable[[EngineConfig, Report], tuple[Core, EngineInfo]]
"""(config, report(phase, fraction)) -> the core and the facts of the loaded engine."""


class Frames(Protocol):
    """A channel as the loop needs it."""

    def send(self, message: FromEngine) -> None: ...

    def wake(self) -> None: ...

    def receive(self, seconds: float | None) -> list[ToEngine]: ...


class Channel:
    """The engine's end of the socket pair, blocking. Raises EOFError once the other end is closed."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)  # a process started by a library must not keep this end open
        self._sending = threading.Lock()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._frames = FrameReader()

    def receive_start(self) -> EngineConfig:
        """Waits for the first frame and takes no byte more. Raises ValueError if it is not Start."""
        size = int.from_bytes(self._socket.recv(HEADER_BYTES, socket.MSG_WAITALL), "big")
        body = self._socket.recv(size, socket.MSG_WAITALL)
        if not body:
            raise EOFError("the other end of the socket is closed")
        message = decode_to_engine(body)
        if not isinstance(message, Start):
            raise ValueError(f"the first frame is {type(message).__name__}, not Start")
        return message.config

    def send(self, message: FromEngine) -> None:
        """Sends one whole frame. Any thread may call it."""
        frame = encode(message)
        try:
            with self._sending:
                self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the other end of the socket is closed") from None

    def wake(self) -> None:
        """Ends a `receive` that sleeps, or the next one. Any thread may call it."""
        os.eventfd_write(self._woken, 1)

    def receive(self, seconds: float | None) -> list[ToEngine]:
        """Returns all messages that have arrived. Sleeps in the kernel until a message arrives or `wake` is called, at
        most `seconds` (None: without limit)."""
        messages: list[ToEngine] = []
        patience = None if seconds is None else math.ceil(seconds * 1000)
        while ready := self._poll.poll(patience):
            descriptors = {descriptor for descriptor, _ in ready}
            if self._woken in descriptors:
                os.eventfd_read(self._woken)
                patience = 0
            if self._socket.fileno() in descriptors:
                messages += self._read()
                patience = 0 if messages else patience
        return messages

    def _read(self) -> list[ToEngine]:
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the other end of the socket is closed")
        return [decode_to_engine(body) for body in self._frames.feed(data)]


class EngineLoop:
    """Runs the engine: inbox, step, news, again and again."""

    def __init__(self, core: Core, channel: Frames, heartbeat_seconds: float = 1.0) -> None:
        self._core = core
        self._channel = channel
        self._adapters = AdapterLoader(core.read_adapter, channel.wake)
        self._grammars = GrammarLoader(core.grammars, channel.wake)
        self._profiler = Profiler(core, channel.send)
        self._pulse = Pulse(channel.send, heartbeat_seconds, core.forecast_seconds)
        self._draining = False
        self._told_at = 0.0

    def run(self) -> None:
        """Returns after Shutdown, when no work is left. Raises EOFError, and every error of a step."""
        self._pulse.start()
        while True:
            idle = not self._core.has_work
            if idle and self._draining and not (self._adapters.is_busy or self._grammars.is_busy):
                return
            for message in self._receive(idle):
                self._handle(message)
            self._attach_adapters()
            for request in self._grammars.take():
                self._core.add(request)
            self._profiler.look()
            if self._core.has_work:
                self._step()

    def _receive(self, idle: bool) -> list[ToEngine]:
        """Returns new messages; sleeps until a message arrives, or a profile gives up, if there is no work. To the
        heartbeat, a wait for an adapter alone is like a step: it may be long, but not endless."""
        if not idle:
            return self._channel.receive(0.0)
        if self._adapters.is_busy:
            self._pulse.begin()
        else:
            self._pulse.rest()
        arrived = self._channel.receive(self._profiler.patience)
        self._pulse.end()
        self._pulse.work()
        return arrived

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Add(requests):
                self._add(each for each in requests if not self._adapters.keeps(each))
            case Abort(request_ids):
                for request in (*self._adapters.abort(request_ids), *self._grammars.abort(request_ids)):
                    self._core.add(request)  # then it ends like any other request
                self._core.abort(request_ids)
            case LoadAdapter(name, _, ticket):
                if self._core.keep_adapter(name):
                    self._channel.send(AdapterLoaded(name, ticket))
                else:
                    self._adapters.load(message)
            case UnloadAdapter(name):
                self._core.unload_adapter(name)
                self._add(self._adapters.forget(name))
            case Profile():
                self._profiler.take(message)
            case Shutdown():
                self._draining = True
            case Start():
                raise ValueError("a second Start frame")

    def _attach_adapters(self) -> None:
        for order, read, waiting in self._adapters.take():
            error = read if isinstance(read, str) else _attached(read)
            self._channel.send(AdapterLoaded(order.name, order.ticket, error))
            self._add(waiting)

    def _add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if not self._grammars.keeps(request):
                self._core.add(request)

    def _step(self) -> None:
        self._pulse.begin()
        outputs = self._profiler.step() if self._profiler.is_running else self._core.step()
        self._pulse.end()
        now = time.monotonic()
        if outputs or now - self._told_at >= _NEWS_SECONDS:
            self._told_at = now
            self._channel.send(Step(tuple(outputs), self._core.stats, self._core.take_steps()))


def _attached(attach: Attach) -> str:
    """Attaches an adapter. Returns the reason of a failure, or ""."""
    try:
        attach()
    except Exception as error:  # as in AdapterLoader
        return describe(error)
    return ""


def run_process(prepare: Callable[[], BuildCore], argv: list[str]) -> int:
    """Runs one engine process and returns its exit code. `argv[1]` is the socket's file descriptor. `prepare` imports
    the core's builder before the configuration is known."""
    host.die_with_parent()
    os.nice(host.ENGINE_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(int(argv[1]))
    try:
        _serve(prepare(), channel)
    except EOFError:
        return 0
    except Exception as error:  # the last place that can report the cause to the parent
        host.print_wordless(error)
        with suppress(EOFError):
            channel.send(Fatal(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _serve(build: BuildCore, channel: Channel) -> None:
    config = channel.receive_start()
    core, info = build(config, Report(channel))
    loop = EngineLoop(core, channel, config.heartbeat_seconds)
    gc.collect()
    gc.freeze()  # loaded objects live as long as the process: never scan them again
    channel.send(Ready(info))
    loop.run()
