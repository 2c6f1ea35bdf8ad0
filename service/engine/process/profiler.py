"""A profiler records the steps of a running engine for one profile, in pieces, and gives up when no step comes.

    order ─▶ begin ─ step ─ step ─ end ─▶ piece 0 ─ begin ─ step … end ─▶ piece 1 … ─▶ Profiled

A piece is written as soon as it is large, so that neither memory nor the pause of the answers grows with the number of
steps. The parts of a step are named by replacing methods while a profile is made, so that without one a step costs
nothing more. The module knows no torch: the runner's `Recorder` records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from service.engine.protocol.messages import EngineStats, Profile, Profiled, StepOutput
from service.engine.protocol.profiling import NamedPart, Recorder, Span

STEP: Final = "dosirak::step"
PIECE_BYTES: Final = 2_000_000
"""The size of a piece that the next piece aims at; larger ones would hold the answers up for longer."""
LONGEST_PIECE: Final = 200
"""The most steps of a piece."""


class Named:
    """Methods whose calls run inside a span, until `restore`. They are replaced on their objects, so that a step that
    nobody records does not even ask whether somebody does."""

    def __init__(self, parts: Iterable[NamedPart], span: Span) -> None:
        self._before = [(part, vars(part.owner).get(part.method)) for part in parts]
        for part, _ in self._before:
            setattr(part.owner, part.method, _named(getattr(part.owner, part.method), span, part.name))

    def restore(self) -> None:
        for part, before in self._before:
            delattr(part.owner, part.method)
            if before is not None:
                setattr(part.owner, part.method, before)


def _named(method: Callable[..., Any], span: Span, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with span(name):
            return method(*args, **kwargs)

    return call


class ProfiledEngine(Protocol):
    """`EngineCore`, as far as a profile needs it."""

    @property
    def parts(self) -> Sequence[NamedPart]: ...

    @property
    def stats(self) -> EngineStats: ...

    def recorder(self, kind: str) -> Recorder: ...

    def step(self) -> list[StepOutput]: ...


class _Running:
    """The profile that is being made."""

    def __init__(self, order: Profile, recorder: Recorder, named: Named, now: float) -> None:
        self.order = order
        self.named = named
        self.recorder = recorder
        self.steps = self.tokens = self.pieces = 0
        self.seconds = 0.0
        self.left_in_piece = 1  # the first piece measures how many bytes a step takes
        self.steps_in_piece = 0
        self.deadline = now + order.patience_seconds


class Profiler:
    """Owns the profile of one engine process; the engine's thread calls it. `send` gets the end of each profile."""

    def __init__(
        self,
        engine: ProfiledEngine,
        send: Callable[[Profiled], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._send = send
        self._clock = clock
        self._running: _Running | None = None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def patience(self) -> float | None:
        """Returns the seconds until a profile without a step gives up; None without a profile."""
        return max(0.0, self._running.deadline - self._clock()) if self._running else None

    def take(self, order: Profile) -> None:
        """Begins a profile. Sends its end at once if it cannot begin."""
        if self._running is not None:
            self._send(Profiled(order.id, error="another profile of this engine runs"))
            return
        try:
            recorder = self._engine.recorder(order.kind)
            recorder.begin()
        except Exception as error:  # a profiler that cannot start must not end the engine
            self._send(Profiled(order.id, error=f"the profiler could not start: {error}"))
            return
        named = Named([*self._engine.parts, *recorder.parts], recorder.span)
        self._running = _Running(order, recorder, named, self._clock())

    def step(self) -> list[StepOutput]:
        """Makes one step of the engine, as a step of the profile."""
        running = self._running
        if running is None:
            return self._engine.step()
        before = self._engine.stats.steps_total
        started = self._clock()
        with running.recorder.span(STEP):
            outputs = self._engine.step()
        seconds = self._clock() - started
        stats = self._engine.stats
        if stats.steps_total > before:  # else it only reported ends, and computed nothing
            running.recorder.stepped()
            running.steps += 1
            running.steps_in_piece += 1
            running.tokens += stats.step_tokens
            running.seconds += seconds
            running.deadline = self._clock() + running.order.patience_seconds
            self._turn_page(running)
        return outputs

    def look(self) -> None:
        """Gives up if no step came for too long."""
        running = self._running
        if running is None or self._clock() < running.deadline:
            return
        waited = f"{running.order.patience_seconds:g} s passed without a step"
        after = f" after {running.steps} of {running.order.steps}" if running.steps else ""
        self._finish(running, f"{waited}{after}: send requests to the version while it is profiled")

    def _turn_page(self, running: _Running) -> None:
        """Ends the piece if it is full, and the profile if it has its steps."""
        is_last = running.steps == running.order.steps
        running.left_in_piece -= 1
        if running.left_in_piece and not is_last:
            return
        try:
            written = running.recorder.end(Path(running.order.directory, f"piece-{running.pieces:04d}"))
            running.pieces += 1
            if not is_last:
                running.left_in_piece = _steps_of_piece(written, running.steps_in_piece)
                running.steps_in_piece = 0
                running.recorder.begin()
                return
        except Exception as error:  # a full disk must not end the engine
            self._leave(running, f"it could not be recorded: {error}")
            return
        self._leave(running, "")

    def _finish(self, running: _Running, error: str) -> None:
        try:
            running.recorder.end(None)
        except Exception as failure:
            error = f"{error} ({failure})"
        self._leave(running, error)

    def _leave(self, running: _Running, error: str) -> None:
        self._running = None
        running.named.restore()
        self._send(Profiled(running.order.id, running.steps, running.tokens, running.seconds, error))


def _steps_of_piece(written: int, steps: int) -> int:
    """Returns how many steps the next piece may have, from the bytes of the last one."""
    return min(LONGEST_PIECE, max(1, PIECE_BYTES * steps // max(1, written)))
