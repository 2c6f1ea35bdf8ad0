"""The worker is the engine process: `python -m service.engine.worker FD`, a socket loop around the core.

FD is one end of a connected AF_UNIX socket pair. The first frame in is Start. Then the process sends Loading frames,
Ready, and one Step frame for each step with news. The worker knows no asyncio or text. Only the runner's builder
imports torch.

Four events end this process: Shutdown and no work left (exit 0), the close of the socket's other end (exit 0 at the
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
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from service.child_process import die_with_parent
from service.engine.adapter_loading import AdapterLoader, Attach, describe
from service.engine.blocks.block_manager import BlockManager
from service.engine.blocks.offload import Offload
from service.engine.core import EngineCore, ModelRunner
from service.engine.frames import HEADER_BYTES, FrameReader, decode_to_engine, encode
from service.engine.grammar_loading import GrammarLoader
from service.engine.heartbeat import Pulse
from service.engine.messages import (
    Abort,
    AdapterLoaded,
    Add,
    EngineConfig,
    EngineInfo,
    Fatal,
    FromEngine,
    LoadAdapter,
    Loading,
    Profile,
    Ready,
    Request,
    Shutdown,
    Start,
    Step,
    ToEngine,
    UnloadAdapter,
)
from service.engine.profiling import Profiler
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler
from service.engine.work import ModelWork

BuildRunner = Callable[[EngineConfig, Callable[[str, float], None]], tuple[ModelRunner, EngineInfo]]
"""(config, progress(phase, fraction)) -> the runner and the facts of the loaded engine."""

_NEWS_SECONDS: Final = 0.25  # steps without outputs send their stats this often
_READ_BYTES: Final = 1 << 20
_MIN_PREFILL_TOKENS: Final = 8  # beside decodes: small enough for a slow machine, enough rows for a fast kernel


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

    def __init__(self, core: EngineCore, channel: Frames, heartbeat_seconds: float = 1.0) -> None:
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


def build_core(config: EngineConfig, runner: ModelRunner, num_blocks: int, work: ModelWork | None = None) -> EngineCore:
    """Returns a core on the process's monotonic clock. `work` is as in EngineCore."""
    return EngineCore(runner, build_scheduler(config, runner, num_blocks), time.monotonic, work)


def build_scheduler(config: EngineConfig, runner: ModelRunner, num_blocks: int) -> Scheduler:
    """Returns a scheduler. Raises the maximum of a step, if needed, to the least prefill beside a full batch."""
    max_tokens = max(config.max_num_batched_tokens, config.max_num_seqs + _MIN_PREFILL_TOKENS)
    policy = BatchingPolicy(max_tokens, _MIN_PREFILL_TOKENS, config.inter_token_latency_target)
    offload = Offload(runner.num_disk_blocks if config.prefix_caching else 0)
    size = config.block_size
    worth = partial(policy.block_seconds, block_size=size)
    blocks = BlockManager(num_blocks, size, config.prefix_caching, offload, worth)
    speculation = config.speculation and runner.verifies_drafts
    return Scheduler(
        blocks,
        policy,
        config.max_num_seqs,
        config.max_model_len,
        speculation,
        config.decoder_start,
        runner.draft_model,
    )


def main(prepare: Callable[[], BuildRunner], argv: list[str]) -> int:
    """Runs one engine process and returns its exit code. `argv[1]` is the socket's file descriptor. `prepare` imports
    the runner's builder before the configuration is known."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(int(argv[1]))
    try:
        _serve(prepare(), channel)
    except EOFError:
        return 0
    except Exception as error:  # the last place that can report the cause to the parent
        traceback.print_exc()
        with suppress(EOFError):
            channel.send(Fatal(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _serve(build: BuildRunner, channel: Channel) -> None:
    config = channel.receive_start()
    runner, info = build(config, lambda phase, fraction: channel.send(Loading(phase, fraction)))
    loop = EngineLoop(build_core(config, runner, info.blocks_total, info.work), channel, config.heartbeat_seconds)
    gc.collect()
    gc.freeze()  # loaded objects live as long as the process: never scan them again
    channel.send(Ready(info))
    loop.run()


def _prepare() -> BuildRunner:
    """Imports torch, after `die_with_parent`, and where a failure is reported as Fatal."""
    from service.runner.loading.building import build_runner

    return build_runner


if __name__ == "__main__":
    os._exit(main(_prepare, sys.argv))  # no interpreter teardown: libraries' threads must not delay the end
