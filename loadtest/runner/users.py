"""Locust's users: in an open loop each takes the next request of the schedule, in a closed loop each has its own
chat. A user makes requests, as the bodies that their routes take, and samples. It judges nothing. This module
patches the standard library for gevent (locust does at its import), so nothing but the run's own process imports it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from random import Random
from secrets import token_hex
from typing import Any, ClassVar

from gevent import sleep
from gevent.event import Event
from locust import User, task
from locust.exception import StopUser

from loadtest.runner.address import Address
from loadtest.runner.arrivals import InFlight, request_at
from loadtest.runner.replies import Answer, Reply, read
from loadtest.runner.sample import Sample
from loadtest.runner.wire import Connection
from service.evaluation.scenarios.requests import Dialogue, Drawn, due_times
from service.evaluation.scenarios.scenario import ClosedLoop, OpenLoop, RequestKind, Scenario

EARLY_SECONDS = 0.002
"""Timers wake up to a millisecond late; a user wakes so much earlier and yields until the time has come."""


def body(drawn: Drawn) -> dict[str, Any]:
    kind = drawn.kind
    model = {} if kind.model is None else {"model": kind.model}
    end = {"ignore_eos": True} if kind.ignore_eos else {}
    if kind.route in ("/generate_stream", "/generate"):
        parameters = {"max_new_tokens": drawn.max_new_tokens, "temperature": kind.temperature, **end}
        return {**model, "messages": drawn.chat, "parameters": parameters}
    asked = {**model, "max_tokens": drawn.max_new_tokens, "temperature": kind.temperature, **end}
    if kind.route == "/v1/chat/completions":
        return {**asked, "messages": drawn.chat, "stream": True, "stream_options": {"include_usage": True}}
    return {**asked, "prompt": [drawn.chat[-1]["content"], *drawn.others]}


@dataclass(slots=True)
class Run:
    """What the users of one run share. `began` is the monotonic second 0 of the run; `over` ends it early. `in_flight`
    has the requests that have no answer yet, by their id."""

    scenario: Scenario
    address: Address
    key: str
    began: float = 0.0
    begin: Event = field(default_factory=Event)
    over: Event = field(default_factory=Event)
    name: str = field(default_factory=lambda: f"load-{token_hex(4)}")
    numbers: Iterator[int] = field(default_factory=count)
    users: Iterator[int] = field(default_factory=count)
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    arrivals: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        load = self.scenario.load
        self.arrivals = iter(due_times(load)) if isinstance(load, OpenLoop) else iter(())

    def connection(self) -> Connection:
        return Connection(self.address, self.key, self.scenario.load.answer_seconds)

    def now(self) -> float:
        return time.perf_counter() - self.began

    def wait_until(self, second: float) -> bool:
        """Returns False where the run is over before that second."""
        if (early := second - EARLY_SECONDS - self.now()) > 0 and self.over.wait(early):
            return False
        while self.now() < second:
            sleep(0)
        return not self.over.is_set()


class LoadUser(User):
    """Sends requests and tells each to locust's `request` event, with its sample in the context."""

    abstract = True
    run_state: ClassVar[Run]

    def on_start(self) -> None:
        self.connection = self.run_state.connection()
        self.run_state.begin.wait()

    def on_stop(self) -> None:
        self.connection.close()

    def send(self, due: float, drawn: Drawn) -> Answer:
        kind = drawn.kind
        run, due = self.run_state, round(due, 6)
        request_id = f"{run.name}-{next(run.numbers)}"
        run.in_flight[request_id] = InFlight(request_id, due, run.now(), kind.route)
        reply = self.connection.request("POST", kind.route, body(drawn), request_id)
        del run.in_flight[request_id]  # a user that is ended here leaves it
        answer = read(reply)
        sample = self._sample(request_id, due, kind, reply, answer)
        self.environment.events.request.fire(
            request_type="POST",
            name=kind.route,
            response_time=sample.e2e_ms,
            response_length=sample.tokens,
            exception=RuntimeError(answer.error) if answer.error else None,
            context={"sample": sample},
        )
        return answer

    def _sample(self, request_id: str, due: float, kind: RequestKind, reply: Reply, answer: Answer) -> Sample:
        began, times = self.run_state.began, answer.token_times
        window = self.run_state.scenario.load.window
        return Sample(
            id=request_id,
            due=due,
            sent=round((reply.sent or reply.ended) - began, 6),
            route=kind.route,
            status=reply.status,
            error=answer.error,
            refused=reply.refused,
            counts=window[0] <= due < window[1],
            model=answer.model,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            tokens=answer.tokens,
            ttft_ms=round((times[0] - began - due) * 1e3, 3) if times else None,
            itl_ms=[round((later - at) * 1e3, 3) for at, later in pairwise(times)],
            e2e_ms=round((reply.ended - began - due) * 1e3, 3),
        )


class OpenUser(LoadUser):
    abstract = True

    @task
    def next_arrival(self) -> None:
        run = self.run_state
        due = next(run.arrivals, None)
        if due is None:
            raise StopUser
        drawn = request_at(run.scenario, due)
        if not run.wait_until(due):
            raise StopUser
        self.send(due, drawn)


class ClosedUser(LoadUser):
    """Users begin spread over their longest pause, at most over the warm-up."""

    abstract = True
    load: ClassVar[ClosedLoop]

    def on_start(self) -> None:
        super().on_start()
        self.draw = Random(f"{self.load.seed} user {next(self.run_state.users)}")
        self.dialogue = Dialogue(self.run_state.scenario.requests, self.draw)
        spread = min(self.load.warmup_seconds, max(1.0, self.load.think_seconds[1]))
        self.run_state.wait_until(self.draw.random() * spread)

    @task
    def next_turn(self) -> None:
        run = self.run_state
        if run.now() >= self.load.window[1] or run.over.is_set():
            raise StopUser
        answer = self.send(run.now(), self.dialogue.next_request())
        self.dialogue.hear(answer.text, not answer.error)
        pause = self.draw.uniform(*self.load.think_seconds)
        run.wait_until(min(run.now() + pause, self.load.window[1]))


def user_class(run: Run) -> type[LoadUser]:
    load = run.scenario.load
    kind: type[LoadUser] = OpenUser if isinstance(load, OpenLoop) else ClosedUser
    return type("ScenarioUser", (kind,), {"abstract": False, "run_state": run, "load": load})
