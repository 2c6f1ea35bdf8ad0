"""The live requests of one engine, and what each was given so far: enough to replay them in another process.

Queues and counts; nothing here knows processes or sockets. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from service.engine.messages import FinishReason, Request, StepOutput
from service.errors import GenerationFailed


class EngineFailed(GenerationFailed):
    """The engine could not be loaded, or is dead for good; started answers end with this."""


@dataclass(slots=True, eq=False)
class Stream:
    """One live request. What was put into `queue` counts as given out, whether or not its consumer has taken it."""

    request: Request
    queue: asyncio.Queue[StepOutput | EngineFailed] = field(default_factory=asyncio.Queue)
    emitted: list[int] = field(default_factory=list)
    emitted_prompt_logprobs: int = 0
    fruitless_replays: int = 0
    """Replays since its last output: a request that kills the engine is told from those that were merely there."""

    def give(self, output: StepOutput) -> None:
        self.emitted += output.token_ids
        self.emitted_prompt_logprobs += len(output.prompt_logprobs)
        self.fruitless_replays = 0
        self.queue.put_nowait(output)

    async def next(self) -> StepOutput:
        """The next news. Raises EngineFailed, as the stream's last word."""
        output = await self.queue.get()
        if isinstance(output, EngineFailed):
            raise output
        return output

    def to_replay(self) -> Request:
        """The request as another engine process must see it: what was given out is computed, but never told, again."""
        emitted = (*self.request.emitted, *self.emitted)
        skip = self.request.emitted_prompt_logprobs + self.emitted_prompt_logprobs
        return replace(self.request, emitted=emitted, emitted_prompt_logprobs=skip)


class Streams:
    """Every request whose end has not been told yet, by id; each is told exactly one end."""

    def __init__(self) -> None:
        self._live: dict[str, Stream] = {}
        self._suspects: deque[Stream] = deque()
        self._on_trial: Stream | None = None

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._live.values()))

    def open(self, request: Request) -> Stream:
        """Raises ValueError when a request of this id is alive."""
        if request.id in self._live:
            raise ValueError(f"request {request.id} is alive already")
        stream = self._live[request.id] = Stream(request)
        return stream

    def close(self, stream: Stream) -> bool:
        """Its consumer is gone. Whether it was still alive, so that the engine must be told to abort it."""
        if not self._is_live(stream):
            return False
        del self._live[stream.request.id]
        return True

    def give(self, outputs: Iterable[StepOutput]) -> None:
        """Hand one step's news to their streams; news of a stream that has been closed are dropped."""
        for output in outputs:
            stream = self._live.get(output.request_id)
            if stream is None:
                continue
            stream.give(output)
            if output.finish_reason is not None:
                del self._live[output.request_id]

    def replay(self, max_fruitless: int) -> tuple[Request, ...]:
        """What a new process must be given at once. Resets who is on trial.

        A stream replayed `max_fruitless` times without a single output since fails: it is what kills the engine. One
        that was in a fruitless replay is a suspect, and suspects are tried one at a time: see `next_suspect`.
        """
        for stream in self:
            if stream.fruitless_replays >= max_fruitless:
                self._fail(stream, f"the engine died {max_fruitless + 1} times over this request")
        self._suspects = deque(stream for stream in self if stream.fruitless_replays)
        self._on_trial = None
        trusted = tuple(self._try(stream) for stream in self if not stream.fruitless_replays)
        return trusted + self.next_suspect()

    def next_suspect(self) -> tuple[Request, ...]:
        """What the process must be given after a step: the next suspect, if any, once the one before it has had an
        output or has ended."""
        trial = self._on_trial
        if trial is not None and trial.fruitless_replays and self._is_live(trial):
            return ()
        self._on_trial = None
        while self._suspects and self._on_trial is None:
            stream = self._suspects.popleft()
            self._on_trial = stream if self._is_live(stream) else None
        return (self._try(self._on_trial),) if self._on_trial else ()

    def expire(self, before: float) -> tuple[str, ...]:
        """End with DEADLINE every stream whose deadline is at or before that time; their ids."""
        expired = [
            stream.request.id
            for stream in self._live.values()
            if stream.request.deadline is not None and stream.request.deadline <= before
        ]
        self.give(StepOutput(request_id, finish_reason=FinishReason.DEADLINE) for request_id in expired)
        return tuple(expired)

    def fail(self, why: str) -> None:
        """End every stream with EngineFailed."""
        for stream in self:
            self._fail(stream, why)

    def _is_live(self, stream: Stream) -> bool:
        return self._live.get(stream.request.id) is stream

    @staticmethod
    def _try(stream: Stream) -> Request:
        stream.fruitless_replays += 1
        return stream.to_replay()

    def _fail(self, stream: Stream, why: str) -> None:
        stream.queue.put_nowait(EngineFailed(why))  # one exception each: raising one twice would mix their tracebacks
        del self._live[stream.request.id]
