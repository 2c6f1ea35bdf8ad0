"""These wire models are the bodies of operators: a deployment to load, steps to record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.api.shared.schemas import ModelReference, Wire
from service.settings import MAX_REPLICAS

MAX_PROFILE_STEPS = 1000


class DeploymentBody(Wire):
    """`replicas` is the number of engine processes, which share the version's weights and one queue. `draft` is a small
    version with the same tokens that makes drafts for it. `engine` is the engine that serves it, `dosirak` or `vllm`,
    with options of its own."""

    model: ModelReference
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    draft: ModelReference | None = None
    engine: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    engine_options: Annotated[dict[str, int | str], Field(max_length=64)] | None = None


class ProfileBody(Wire):
    """`steps` of the version's engine are recorded; `kind` says what of them: seconds of `operators`, their `memory`
    too, or Python's `stacks` too."""

    steps: Annotated[int, Field(ge=1, le=MAX_PROFILE_STEPS)]
    model: ModelReference | None = None
    kind: Literal["operators", "memory", "stacks"] = "operators"
