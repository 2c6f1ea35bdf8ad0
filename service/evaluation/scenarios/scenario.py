"""A scenario says what load a server or an engine gets, and which limits its figures must hold. It knows no file
and no wire.

Every field is bounded. Unknown ones are refused (`reading.py` makes sentences of the errors).
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from service.evaluation.scenarios.figures import AT_LEAST, RATIOS, FigureName

Route = Literal["/generate_stream", "/generate", "/v1/chat/completions", "/v1/completions"]
STREAMED: Final = frozenset({"/generate_stream", "/v1/chat/completions"})
NEEDED: Final = {"p95": 20, "p99": 100}
"""A percentile is nothing but the largest observation where fewer are there."""
LONGEST: Final = 86400.0


def _as_range(value: object) -> object:
    """One number stands for itself twice."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("one number, or two in brackets: the least and the most")
    if all(isinstance(each, int | float) for each in value) and value[0] > value[1]:
        raise ValueError(f"the least comes first: [{value[1]}, {value[0]}]")
    return tuple(value)


Count = Annotated[int, Field(ge=1, le=100_000)]
Counts = Annotated[tuple[Count, Count], BeforeValidator(_as_range)]
Pause = Annotated[float, Field(ge=0, le=3600)]
Pauses = Annotated[tuple[Pause, Pause], BeforeValidator(_as_range)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Load(Table):
    """`seconds` of requests count, after those of the warm-up. `answer_seconds`: an answer that takes longer failed."""

    warmup_seconds: float = Field(default=5.0, ge=0, le=LONGEST)
    seconds: float = Field(gt=0, le=LONGEST)
    answer_seconds: float = Field(default=60.0, gt=0, le=3600)
    min_samples: Count = 100
    seed: int = Field(default=1, ge=0, lt=2**63)

    @property
    def window(self) -> tuple[float, float]:
        return self.warmup_seconds, self.warmup_seconds + self.seconds


class OpenLoop(Load):
    """Requests arrive by a schedule, whatever the server does. `users` bounds how many are in flight."""

    kind: Literal["open"]
    arrivals: Literal["poisson", "constant"] = "poisson"
    rate: float = Field(gt=0, le=10_000)
    users: int = Field(default=256, ge=1, le=10_000)

    @model_validator(mode="after")
    def _enough(self) -> OpenLoop:
        expected = self.rate * self.seconds
        if self.min_samples > expected:
            raise ValueError(
                f"min_samples is {self.min_samples}, but {self.rate:g} a second for {self.seconds:g} s are about "
                f"{expected:.0f} requests: raise rate or seconds"
            )
        return self


class ClosedLoop(Load):
    """Each user sends a request after the answer before it and a pause of `think_seconds`."""

    kind: Literal["closed"]
    users: int = Field(ge=1, le=10_000)
    think_seconds: Pauses = (0.0, 0.0)


class RequestKind(Table):
    """One kind of request; `weight` is its share among the kinds. `prompts` at once: /v1/completions alone.

    With `turns` above 1 a user sends the chat so far with each next message, and begins anew after the last.
    """

    route: Route
    weight: float = Field(default=1.0, gt=0, le=1e6)
    model: str | None = Field(default=None, min_length=1, max_length=300)
    prompt_words: Counts = (4, 16)
    max_new_tokens: Counts = (16, 64)
    temperature: float = Field(default=0.0, ge=0, le=2)
    ignore_eos: bool = True
    prompts: Count = 1
    turns: Count = 1

    @model_validator(mode="after")
    def _acts(self) -> RequestKind:
        if self.prompts > 1 and self.route != "/v1/completions":
            raise ValueError(f"prompts acts on /v1/completions alone, not on {self.route}: take it out")
        if self.turns > 1 and self.route == "/v1/completions":
            raise ValueError("turns acts on chats alone, and /v1/completions has none: take it out")
        return self


class Action(Table):
    """What is done to the server at a second of the run, the warm-up included. It is undone after the run."""

    at_seconds: float = Field(ge=0, le=LONGEST)
    model: Name
    alias: Name = "production"


class Promote(Action):
    kind: Literal["promote"]
    version: Name


class BeginRollout(Action):
    kind: Literal["rollout"]
    candidate: Name
    weight: float = Field(ge=0, le=100)


class EndRollout(Action):
    kind: Literal["abort_rollout", "promote_rollout"]


class Scenario(Table):
    """`limits`: figures and the worst values that hold. `worse_by`: how much worse than the baseline's a figure may
    be, as a ratio: 0.2 is 20 %."""

    name: Name
    description: str = Field(default="", max_length=2000)
    load: Annotated[OpenLoop | ClosedLoop, Field(discriminator="kind")]
    requests: list[RequestKind] = Field(min_length=1, max_length=100)
    actions: list[Annotated[Promote | BeginRollout | EndRollout, Field(discriminator="kind")]] = Field(
        default=[], max_length=100
    )
    limits: dict[FigureName, Annotated[float, Field(ge=0, le=1e9)]] = Field(min_length=1)
    worse_by: dict[FigureName, Annotated[float, Field(ge=0, le=1000)]] = {}

    @model_validator(mode="after")
    def _fits(self) -> Scenario:
        end = self.load.window[1]
        if late := [action for action in self.actions if action.at_seconds >= end]:
            raise ValueError(f"at_seconds is {late[0].at_seconds:g}, but the run ends after {end:g} s: take less")
        if self.load.kind == "open" and any(kind.turns > 1 for kind in self.requests):
            raise ValueError('turns needs kind = "closed": a scheduled request cannot wait for the answer before it')
        for name, limit in [*self.limits.items(), *self.worse_by.items()]:
            self._measurable(name)
            if name in RATIOS and limit > 1:
                raise ValueError(f"{name} is a ratio: its limit is at most 1")
        return self

    @model_validator(mode="after")
    def _comparable(self) -> Scenario:
        for name, by in self.worse_by.items():
            if name in RATIOS or name == "versions":
                raise ValueError(f"worse_by.{name}: a ratio of it says nothing; write it into [limits]")
            if name in AT_LEAST and by >= 1:
                raise ValueError(f"worse_by.{name} is {by:g}, and more is better of it: 1 or more allows everything")
        return self

    def _measurable(self, name: str) -> None:
        if name.startswith(("ttft", "itl")) and not any(kind.route in STREAMED for kind in self.requests):
            raise ValueError(f"{name} needs a route that streams: {' or '.join(sorted(STREAMED))}")
        figure, _, percent = name.removesuffix("_ms").rpartition("_")
        if figure in ("ttft", "e2e", "send_delay") and self.load.min_samples < NEEDED.get(percent, 1):
            raise ValueError(f"{name} needs load.min_samples of {NEEDED[percent]} at least")

    def load_only(self) -> dict[str, Any]:
        """Returns what makes the load, without what judges it: runs are compared if this is the same."""
        return self.model_dump(mode="json", exclude={"description", "limits", "worse_by"})

    @property
    def digest(self) -> str:
        """Returns a digest of the load alone: measurements stay comparable when only limits change."""
        text = json.dumps(self.load_only(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
