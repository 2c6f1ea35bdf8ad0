"""A fleet over a day, event by event: chats begin, turns are placed, steps end, tokens are handed out, people pause.

It knows instances, chats and a policy. It knows no real clock: a day takes as long as its steps take to schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from loadtest.fleet.chats import Chat, Choose
from loadtest.fleet.instance import Instance
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.scenarios.figures import percentile

Kind = Literal["turn", "add", "step", "loss"]


@dataclass(slots=True)
class Turn:
    """A turn on its way: whose it is, where it is, when it was asked and when its first token came."""

    chat: Chat
    instance: Instance
    asked: float
    first: float | None = None


@dataclass(slots=True)
class Outcome:
    """What a day was like. Latencies are seconds, in the order of the answers' ends."""

    first_tokens: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    hit_ratio: float = 0.0
    busiest: float = 0.0
    """The share of the time that the busiest engine computed."""

    def first_token(self, percent: float) -> float:
        return percentile(self.first_tokens, percent) or 0.0

    def answer(self, percent: float) -> float:
        return percentile(self.answers, percent) or 0.0

    @property
    def tokens_a_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Simulation:
    """One run. `lost_at` takes the last instance out at that second: its turns begin again elsewhere, as clients with
    an Idempotency-Key have it."""

    def __init__(self, instances: Sequence[Instance], choose: Choose, lost_at: float | None = None) -> None:
        self._instances = list(instances)
        self._all = tuple(instances)
        self._choose = choose
        self._events: list[tuple[float, int, Kind, object]] = []
        self._order, self._names = count(), count()
        self._turns: dict[str, Turn] = {}
        self._window = instances[0].shape.window
        self.outcome = Outcome()
        if lost_at is not None:
            self._push(lost_at, "loss", instances[-1])

    def run(self, chats: Iterable[tuple[float, Chat]]) -> Outcome:
        """Runs until every turn of the chats is answered."""
        for began, chat in chats:
            self._push(began, "turn", chat)
        while self._events:
            now, _, kind, subject = heappop(self._events)
            self.outcome.seconds = max(self.outcome.seconds, now)
            if isinstance(subject, Chat):
                self._ask(now, subject)
            elif isinstance(subject, Request):
                self._add(now, subject)
            elif isinstance(subject, Instance):
                self._lose(now, subject) if kind == "loss" else self._step(now, subject)
        queried = sum(each.core.scheduler.prefill.num_queried_tokens for each in self._all)
        hits = sum(each.core.scheduler.prefill.num_hit_tokens for each in self._all)
        self.outcome.hit_ratio = hits / max(1, queried)
        self.outcome.busiest = max(each.runner.busy for each in self._all) / max(self.outcome.seconds, 1e-9)
        return self.outcome

    def _push(self, when: float, kind: Kind, subject: object) -> None:
        heappush(self._events, (when, next(self._order), kind, subject))

    def _ask(self, now: float, chat: Chat) -> None:
        prompt, answer = chat.ask(self._window)
        name = str(next(self._names))
        self._send(now, now, chat, Request(name, prompt, SamplingParams(max_tokens=answer), arrival=now))

    def _send(self, now: float, asked: float, chat: Chat, request: Request) -> None:
        instance = self._choose(chat, request, self._instances)
        self._turns[request.id] = Turn(chat, instance, asked)
        self._push(instance.accept(now), "add", request)

    def _add(self, now: float, request: Request) -> None:
        instance = self._turns[request.id].instance
        if instance not in self._instances:
            turn = self._turns[request.id]
            self._send(now, turn.asked, turn.chat, request)
            return
        instance.add(request)
        if not instance.is_stepping:
            instance.is_stepping = True
            self._push(now, "step", instance)

    def _step(self, now: float, instance: Instance) -> None:
        if instance not in self._instances:
            return
        done, outputs = instance.step(now)
        for output in outputs:
            turn = self._turns[output.request_id]
            told = instance.hand_out(done, len(output.token_ids))
            turn.chat.hear(output.token_ids)
            self.outcome.tokens += len(output.token_ids)
            if turn.first is None:
                turn.first = told
            if output.finish_reason is not None:
                self._end(told, output.request_id)
        instance.is_stepping = instance.core.has_work
        if instance.is_stepping:
            self._push(done, "step", instance)

    def _end(self, told: float, name: str) -> None:
        turn = self._turns.pop(name)
        turn.instance.in_flight -= 1
        self.outcome.first_tokens.append((turn.first or told) - turn.asked)
        self.outcome.answers.append(told - turn.asked)
        self.outcome.seconds = max(self.outcome.seconds, told)
        if turn.chat.turns > 0:
            self._push(told + turn.chat.pause(), "turn", turn.chat)

    def _lose(self, now: float, instance: Instance) -> None:
        self._instances.remove(instance)
        core = instance.core.scheduler
        for sequence in [*core.running, *core.waiting]:
            turn = self._turns[sequence.request.id]
            emitted = len(sequence.token_ids) - sequence.num_prompt_tokens
            if emitted:
                del turn.chat.tokens[-emitted:]
            self._send(now, turn.asked, turn.chat, sequence.request)
