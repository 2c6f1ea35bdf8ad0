"""Streams are the live requests of one engine, each with its outputs so far: enough to replay it in another process.

This module knows queues and counts. It knows no processes and no sockets. It lives in the event loop.

A request is *given* to the process that runs now, or it *waits*. A given request is *proven* once the process has lived
through enough of its outputs. One output is enough for a request that was never in a crash. When a process dies, its
unproven requests are suspected (`Streams.blame`). A request that was suspected twice is tried first in the next
process, alone (`Streams.to_give`). So the request that kills engines is found, and the other requests only wait
meanwhile.

A request whose consumer has left stays given until the process has ended it. Its suspicion is stored by its content. So
a client that gives up early and tries again keeps the suspicion.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import msgspec

from service.engine.client.poison import MOST_REMEMBERED, Fingerprint, fingerprint
from service.engine.client.restart_policy import DeathKind, RestartPolicy
from service.engine.protocol.messages import FinishReason, Request, StepOutput
from service.errors import DosirakError

_TRIED_ALONE = 2  # suspected deaths after which a request is tried alone
_MOST_OPEN = 32
"""Outputs that wait for a consumer as objects. One who reads slowly, or not at all, has the others wait encoded: with
20 `top_logprobs` an output has 2.8 kB as objects and 0.5 encoded."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StepOutput).decode


@dataclass(slots=True, eq=False)
class Stream:
    """One live request. An output in `queue` counts as given out, even before its consumer takes it."""

    request: Request
    queue: asyncio.Queue[StepOutput | bytes | DosirakError] = field(default_factory=asyncio.Queue)
    opened_at: float = field(default_factory=time.monotonic)
    emitted: list[int] = field(default_factory=list)
    emitted_prompt_logprobs: int = 0
    outputs_to_prove: int = 1
    """Outputs that the process must still live through until the request is proven; 0 is proven."""
    deaths: int = 0
    """Deaths that it was suspected of since it was last proven."""
    crashes: int = 0
    """Crashes of processes that had it, ever; kills from outside do not count."""
    is_replay: bool = False
    """Whether a process had it before the one that gets it next."""
    is_closed: bool = False
    """Whether its consumer has left, or has got its end. Only the process may not have ended it yet."""

    @property
    def is_suspect(self) -> bool:
        return max(self.deaths, self.crashes) >= _TRIED_ALONE

    @property
    def is_proven(self) -> bool:
        return not self.outputs_to_prove

    def give(self, output: StepOutput) -> None:
        self.emitted += output.token_ids
        self.emitted_prompt_logprobs += len(output.prompt_logprobs)
        if self.outputs_to_prove:
            self.outputs_to_prove -= 1
            self.deaths = self.deaths if self.outputs_to_prove else 0
        if not self.is_closed:
            self.queue.put_nowait(output if self.queue.qsize() < _MOST_OPEN else _encode(output))

    def begin_again(self, kind: DeathKind) -> None:
        """Notes that its process died. A request that makes some progress before each crash must prove itself for twice
        as long each time, until it crashes unproven."""
        self.is_replay = True
        self.crashes += kind is not DeathKind.KILLED
        self.outputs_to_prove = 2**self.crashes

    def tell_replay(self) -> None:
        """Tells the consumer where the request goes to another process than before."""
        if self.is_replay:
            self.is_replay = False
            self.queue.put_nowait(StepOutput(self.request.id, replayed_at=time.monotonic()))

    async def next(self) -> StepOutput:
        """Returns the next output. Raises a DosirakError as the end of the stream."""
        output = await self.queue.get()
        if isinstance(output, DosirakError):
            raise output
        return _decode(output) if isinstance(output, bytes) else output

    def to_send(self) -> Request:
        """Returns the request for the process. Tokens that were given out are computed again but never sent again."""
        if not self.emitted and not self.emitted_prompt_logprobs:
            return self.request
        emitted = (*self.request.emitted, *self.emitted)
        skip = self.request.emitted_prompt_logprobs + self.emitted_prompt_logprobs
        return replace(self.request, emitted=emitted, emitted_prompt_logprobs=skip)


class Streams:
    """Holds every request that has not ended for its consumer, by id. Each consumer gets exactly one end."""

    def __init__(self) -> None:
        self._waiting: dict[str, Stream] = {}
        self._in_flight: dict[str, Stream] = {}
        self._suspected: OrderedDict[Fingerprint, tuple[int, int]] = OrderedDict()
        """Deaths and crashes of each content that was suspected and not proven since."""

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[Stream]:
        return iter([*(each for each in self._in_flight.values() if not each.is_closed), *self._waiting.values()])

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def open(self, request: Request) -> Stream:
        """Opens a stream, which waits until `to_give` returns it. Raises ValueError if a request of this id is
        alive."""
        current = self._in_flight.get(request.id)
        if request.id in self._waiting or (current is not None and not current.is_closed):
            raise ValueError(f"request {request.id} is alive already")
        stream = self._waiting[request.id] = Stream(request)
        if self._suspected:
            stream.deaths, stream.crashes = self._suspected.get(fingerprint(request), (0, 0))
        return stream

    def close(self, stream: Stream) -> bool:
        """Closes a stream whose consumer is gone. Returns whether the process has the request and must abort it."""
        if stream.is_closed:
            return False
        is_in_flight = self._in_flight.get(stream.request.id) is stream
        self._end(stream)
        return is_in_flight

    def give(self, outputs: Iterable[StepOutput]) -> None:
        """Hands the outputs of one step to their streams. Drops outputs of closed streams."""
        for output in outputs:
            stream = self._in_flight.get(output.request_id)
            if stream is None:
                continue
            was_suspected = stream.deaths > 0
            stream.give(output)
            if was_suspected and stream.is_proven:
                self._suspected.pop(fingerprint(stream.request), None)
            if output.finish_reason is not None:
                del self._in_flight[output.request_id]

    def to_give(self) -> tuple[Request, ...]:
        """Returns the requests that the process must get now, each request once per process.

        Without suspects these are all waiting requests. With suspects, a new process gets the most suspected request
        and no other. When all its requests are proven or have ended, it gets the next in order of arrival: one suspect,
        or all others. A request opened meanwhile waits too. It may be the one that kills engines, and then the suspect
        must not be blamed for it.
        """
        if not self._waiting:
            return ()
        suspects = [stream for stream in self._waiting.values() if stream.is_suspect]
        if not suspects and not self._on_trial():
            return self._move(list(self._waiting.values()))
        if not self._in_flight:
            return self._move([max(suspects, key=lambda stream: (stream.deaths, stream.crashes))])
        if not all(stream.is_proven for stream in self._in_flight.values()):
            return ()
        oldest = min(self._waiting.values(), key=lambda stream: stream.opened_at)
        return self._move(
            [oldest] if oldest.is_suspect else [each for each in self._waiting.values() if not each.is_suspect]
        )

    def blame(self, kind: DeathKind, policy: RestartPolicy) -> Stream | None:
        """Makes all requests in flight wait again, because the process died. Returns the request to blame if it is
        certain: the request was suspected of this death and enough others in a row, and had this process for itself.
        The caller must fail that request.

        The unproven requests are suspected. If all are proven, each one is, unless the process was killed from outside.
        """
        in_flight = list(self._in_flight.values())
        suspects = [stream for stream in in_flight if not stream.is_proven]
        if not suspects and kind is not DeathKind.KILLED:
            suspects = in_flight
        for stream in in_flight:
            stream.begin_again(kind)
        for stream in suspects:
            stream.deaths += 1
            self._suspected[fingerprint(stream.request)] = stream.deaths, stream.crashes
        while len(self._suspected) > MOST_REMEMBERED:
            self._suspected.popitem(last=False)
        alive = {stream.request.id: stream for stream in in_flight if not stream.is_closed}
        self._waiting, self._in_flight = alive | self._waiting, {}
        limit = policy.max_suspected_kills if kind is DeathKind.KILLED else policy.max_suspected_crashes
        return suspects[0] if len(in_flight) == 1 and suspects and suspects[0].deaths >= limit else None

    def expire(self, before: float) -> tuple[str, ...]:
        """Ends with DEADLINE every stream whose deadline is at or before `before`. Returns the ids that the process
        has."""
        late = [each for each in self if each.request.deadline is not None and each.request.deadline <= before]
        to_abort = tuple(stream.request.id for stream in late if stream.request.id in self._in_flight)
        for stream in late:
            stream.queue.put_nowait(StepOutput(stream.request.id, finish_reason=FinishReason.DEADLINE))
            self._end(stream)
        return to_abort

    def fail(self, error: Callable[[], DosirakError], which: Callable[[Stream], bool] = lambda stream: True) -> None:
        """Ends the chosen streams with an error. Each gets its own exception, so that tracebacks do not mix."""
        for stream in self:
            if which(stream):
                stream.queue.put_nowait(error())
                self._end(stream)

    def _on_trial(self) -> bool:
        return any(stream.is_suspect and not stream.is_proven for stream in self._in_flight.values())

    def _move(self, streams: list[Stream]) -> tuple[Request, ...]:
        for stream in streams:
            self._in_flight[stream.request.id] = self._waiting.pop(stream.request.id)
            stream.tell_replay()
        return tuple(stream.to_send() for stream in streams)

    def _end(self, stream: Stream) -> None:
        """Closes a stream for its consumer. A request in flight stays until the process has ended it."""
        stream.is_closed = True
        if self._waiting.get(stream.request.id) is stream:
            del self._waiting[stream.request.id]
