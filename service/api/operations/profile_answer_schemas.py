"""These models describe profiles of an engine: one, lists, the trace, and the comparison of two."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.api.shared.answer_schemas import Object, Page, Shown, Time


class OperatorShown(Shown):
    """`self_seconds` and `self_bytes`, over all steps, leave out the operators that it calls. `self_bytes` is what it
    allocated, null but for the kind `memory`."""

    name: str
    calls: int
    self_seconds: float
    self_bytes: int | None


class ProfileShown(Shown):
    """`steps` were asked for, `steps_done` recorded; `tokens` and `seconds` are of the recorded steps. `operators`, the
    most seconds first, is null until the state is succeeded; `error` says why one has failed."""

    id: str
    model: str
    digest: str
    kind: Literal["operators", "memory", "stacks"]
    state: Literal["queued", "running", "succeeded", "failed"]
    steps: int
    steps_done: int
    tokens: int
    seconds: float
    created_at: Time
    ended_at: Time | None
    error: str | None
    operators: list[OperatorShown] | None


class ProfilePage(Page[ProfileShown]):
    """Profiles, newest first."""


class Trace(Shown):
    """A trace in Chrome's format. Times of an event are microseconds behind `baseTimeNanoseconds`."""

    schemaVersion: int
    displayTimeUnit: str
    baseTimeNanoseconds: int
    deviceProperties: list[Object]
    traceEvents: list[Object]


class ComparedProfile(Shown):
    id: str
    model: str
    digest: str
    kind: str
    steps_done: int
    tokens: int
    seconds_per_step: float


class OperatorDifference(Shown):
    """Own seconds and calls a step; 0 where a profile does not have the operator. The difference is b less a."""

    name: str
    a_seconds_per_step: float
    b_seconds_per_step: float
    difference_seconds_per_step: float
    a_calls_per_step: float
    b_calls_per_step: float


class ComparedProfiles(Shown):
    """`operators`: the largest difference first, slower or faster."""

    a: ComparedProfile
    b: ComparedProfile
    operators: list[OperatorDifference] = Field(description="Of both profiles.")
