"""This module runs a scenario's load: locust's environment and runner, the scenario's actions, and every sample.

It judges nothing. It runs in a process of its own, as `users.py` says.
"""

from __future__ import annotations

import gc
import logging
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import gevent
from locust.env import Environment
from locust.runners import LocalRunner

from loadtest.runner.address import Address
from loadtest.runner.arrivals import unanswered
from loadtest.runner.generator import Generator, watch
from loadtest.runner.sample import Sample
from loadtest.runner.server import Actions, facts
from loadtest.runner.users import Run, user_class
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.scenario import Scenario

GRACE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Measured:
    """`cores` is the processor time of this process over the load's seconds, `began` the clock at the run's second
    0."""

    samples: list[Sample]
    actions: list[tuple[float, str]]
    server: dict[str, Any] | None
    cores: float
    began: float


def measure(scenario: Scenario, address: Address, key: str) -> Measured:
    """Raises NotMeasured where no server is ready, an action fails, or this process was too busy to measure."""
    _end_on_signals()
    run = Run(scenario, address, key)
    connection = run.connection()
    server = facts(connection, address.url)
    actions = Actions(run, connection)
    actions.prepare()
    try:
        samples, generator = _load(run, actions)
    finally:
        actions.undo()
    generator.check()
    return Measured(samples, actions.done, server, generator.cores, run.began)


def _end_on_signals() -> None:
    """The first SIGTERM or SIGINT is a KeyboardInterrupt in this greenlet; the next ones do not disturb the undoing."""
    main, asked = gevent.getcurrent(), list[int]()

    def end() -> None:
        asked.append(1)
        if len(asked) == 1:
            gevent.get_hub().loop.run_callback(main.throw, KeyboardInterrupt)

    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, end)


def _load(run: Run, actions: Actions) -> tuple[list[Sample], Generator]:
    """Returns a sample of every request that was due, answered or not, and what this process took."""
    load, samples = run.scenario.load, list[Sample]()
    with _runner(run, samples) as runner:
        runner.start(load.users, spawn_rate=load.users)
        assert runner.spawning_greenlet is not None
        runner.spawning_greenlet.join()
        run.began = time.perf_counter()
        run.begin.set()
        watching, acting = gevent.spawn(watch, load.window[1], run.over), gevent.spawn(actions.perform)
        runner.user_greenlets.join(timeout=load.window[1] + load.answer_seconds + GRACE_SECONDS)
        run.over.set()
        acting.get()
        if runner.exceptions:
            raise RuntimeError(next(iter(runner.exceptions.values()))["traceback"])
    samples += unanswered(run.scenario, samples, run.in_flight.values(), run.now())
    return sorted(samples, key=lambda sample: sample.due), watching.get()


@contextmanager
def _runner(run: Run, samples: list[Sample]) -> Iterator[LocalRunner]:
    _allow_files(run.scenario.load.users)
    logging.getLogger("locust").setLevel(logging.ERROR)
    environment = Environment(user_classes=[user_class(run)], host=run.address.url, catch_exceptions=False)
    environment.events.request.add_listener(  # type: ignore[no-untyped-call]
        lambda context, **_: samples.append(context["sample"])
    )
    runner = environment.create_local_runner()
    gc.collect()
    gc.freeze()  # a collection of all that the imports made would be a pause in the measured times
    try:
        yield runner
    finally:
        run.over.set()
        runner.quit()
        gc.unfreeze()


def _allow_files(users: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = users + 256
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise NotMeasured(f"{users} users need {needed} open files, and this machine allows {hard}: raise ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
