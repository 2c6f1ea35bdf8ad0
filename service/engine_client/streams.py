"""The streams are the live requests of one engine with what each has given out: enough to replay them elsewhere.

Knows queues and counts; no processes and no sockets. Lives in the event loop.

A request is *given* to the process that runs now, or it *waits*. A given request is *proven* once the process has lived
through enough of its outputs; one is enough for a request that was never in a crash. When a process dies, its unproven
requests are suspected: `Streams.blame`. A request that was suspected twice is tried first in the next process, without
any other: `Streams.to_give`. So the request that kills engines is found, and the others only wait meanwhile.

A request whose consumer has left stays given until the process has ended it, and what it was suspected of is known by
its content: a client that gives up before its request is found out, and tries again, does not begin anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from service.engine.messages import FinishReason, Request, StepOutput
from service.engine_client.poison import MOST_REMEMBERED, Fingerprint, fingerprint
from service.engine_client.restart_policy import DeathKind, RestartPolicy
from service.errors import DosirakError

_TRIED_ALONE = 2  # what was suspected of so many deaths


@dataclass(slots=True, eq=False)
class Stream:
    """One live request. What was put into `queue` counts as given out, whether or not its consumer has taken it."""

    request: Request
    queue: asyncio.Queue[StepOutput | DosirakError] = field(default_factory=asyncio.Queue)
    opened_at: float = field(default_factory=time.monotonic)
    emitted: list[int] = field(default_factory=list)
    emitted_prompt_logprobs: int = 0
    outputs_to_prove: int = 1
    """Outputs that the process must live through until the request is proven; 0 is proven."""
    deaths: int = 0
    """That it was suspected of, since it was last proven."""
    crashes: int = 0
    """Of processes that had it, ever; kills from outside not counted."""
    is_closed: bool = False
    """Its consumer has left, or was told its end; only the process has not ended it yet."""

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
            self.queue.put_nowait(output)

    def begin_again(self, kind: DeathKind) -> None:
        """Its process died so. A request that makes some progress before each crash must prove itself for twice as long
        each time, until it crashes unproven."""
        self.crashes += kind is not DeathKind.KILLED
        self.outputs_to_prove = 2**self.crashes

    async def next(self) -> StepOutput:
        """The next news. Raises a DosirakError as the stream's last word."""
        output = await self.queue.get()
        if isinstance(output, DosirakError):
            raise output
        return output

    def to_send(self) -> Request:
        """The request as the process must see it: what was given out is computed, but never told, again."""
        if not self.emitted and not self.emitted_prompt_logprobs:
            return self.request
        emitted = (*self.request.emitted, *self.emitted)
        skip = self.request.emitted_prompt_logprobs + self.emitted_prompt_logprobs
        return replace(self.request, emitted=emitted, emitted_prompt_logprobs=skip)


class Streams:
    """Every request whose end has not been told yet, by id; each is told exactly one end."""

    def __init__(self) -> None:
        self._waiting: dict[str, Stream] = {}
        self._given: dict[str, Stream] = {}
        self._suspected: OrderedDict[Fingerprint, tuple[int, int]] = OrderedDict()
        """Deaths and crashes of the content that was suspected and not proven since."""

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[Stream]:
        return iter([*(each for each in self._given.values() if not each.is_closed), *self._waiting.values()])

    @property
    def num_given(self) -> int:
        """Requests that the process has, and owes an end to."""
        return len(self._given)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def open(self, request: Request) -> Stream:
        """It waits until `to_give` names it. Raises ValueError when a request of this id is alive."""
        given = self._given.get(request.id)
        if request.id in self._waiting or (given is not None and not given.is_closed):
            raise ValueError(f"request {request.id} is alive already")
        stream = self._waiting[request.id] = Stream(request)
        if self._suspected:
            stream.deaths, stream.crashes = self._suspected.get(fingerprint(request), (0, 0))
        return stream

    def close(self, stream: Stream) -> bool:
        """Its consumer is gone. Whether the process has the request, and must be told to abort it: an end is owed until
        then."""
        if stream.is_closed:
            return False
        given = self._given.get(stream.request.id) is stream
        self._end(stream)
        return given

    def give(self, outputs: Iterable[StepOutput]) -> None:
        """Hand one step's news to their streams; news of a stream that has been closed are dropped."""
        for output in outputs:
            stream = self._given.get(output.request_id)
            if stream is None:
                continue
            was_suspected = stream.deaths > 0
            stream.give(output)
            if was_suspected and stream.is_proven:
                self._suspected.pop(fingerprint(stream.request), None)
            if output.finish_reason is not None:
                del self._given[output.request_id]

    def to_give(self) -> tuple[Request, ...]:
        """What the process must be given now, each request once a process.

        Without suspects these are all that wait. With suspects, a new process is given the most suspected one and no
        other. Whenever all that it was given are proven or have ended, it is given the next in order of arrival: one
        suspect, or all others. What is opened meanwhile waits as well: it may be what kills engines, and the suspect
        must not be taken for it.
        """
        if not self._waiting:
            return ()
        suspects = [stream for stream in self._waiting.values() if stream.is_suspect]
        if not suspects and not self._on_trial():
            return self._move(list(self._waiting.values()))
        if not self._given:
            return self._move([max(suspects, key=lambda stream: (stream.deaths, stream.crashes))])
        if not all(stream.is_proven for stream in self._given.values()):
            return ()
        oldest = min(self._waiting.values(), key=lambda stream: stream.opened_at)
        return self._move(
            [oldest] if oldest.is_suspect else [each for each in self._waiting.values() if not each.is_suspect]
        )

    def blame(self, kind: DeathKind, policy: RestartPolicy) -> Stream | None:
        """The process died: all that it was given wait again. The request that is to blame, if that is certain: it was
        suspected of this death and enough others in a row, and had this process for itself. The caller fails it.

        Suspected are the unproven; where all are proven, each of them, unless something outside killed the process.
        """
        given = list(self._given.values())
        suspects = [stream for stream in given if not stream.is_proven]
        if not suspects and kind is not DeathKind.KILLED:
            suspects = given
        for stream in given:
            stream.begin_again(kind)
        for stream in suspects:
            stream.deaths += 1
            self._suspected[fingerprint(stream.request)] = stream.deaths, stream.crashes
        while len(self._suspected) > MOST_REMEMBERED:
            self._suspected.popitem(last=False)
        alive = {stream.request.id: stream for stream in given if not stream.is_closed}
        self._waiting, self._given = alive | self._waiting, {}
        limit = policy.max_suspected_kills if kind is DeathKind.KILLED else policy.max_suspected_crashes
        return suspects[0] if len(given) == 1 and suspects and suspects[0].deaths >= limit else None

    def expire(self, before: float) -> tuple[str, ...]:
        """End with DEADLINE every stream whose deadline is at or before that time; the ids of those that the process
        has."""
        late = [each for each in self if each.request.deadline is not None and each.request.deadline <= before]
        told = tuple(stream.request.id for stream in late if stream.request.id in self._given)
        for stream in late:
            stream.queue.put_nowait(StepOutput(stream.request.id, finish_reason=FinishReason.DEADLINE))
            self._end(stream)
        return told

    def fail(self, error: Callable[[], DosirakError], which: Callable[[Stream], bool] = lambda stream: True) -> None:
        """End those streams with an error, one exception each: raising one twice would mix their tracebacks."""
        for stream in self:
            if which(stream):
                stream.queue.put_nowait(error())
                self._end(stream)

    def _on_trial(self) -> bool:
        return any(stream.is_suspect and not stream.is_proven for stream in self._given.values())

    def _move(self, streams: list[Stream]) -> tuple[Request, ...]:
        for stream in streams:
            self._given[stream.request.id] = self._waiting.pop(stream.request.id)
        return tuple(stream.to_send() for stream in streams)

    def _end(self, stream: Stream) -> None:
        """Its consumer needs no more. What was given stays until the process has ended it."""
        stream.is_closed = True
        if self._waiting.get(stream.request.id) is stream:
            del self._waiting[stream.request.id]
