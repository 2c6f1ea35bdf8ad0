"""These wire models are for operators: the root, information, deployments, instances, costs, steps to record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.api.shared.answer_schemas import Object, Precision, Shown
from service.api.shared.schemas import ModelReference, Wire
from service.api.shared.unions import BY_TYPE
from service.observability.profiles.profile import Kind
from service.settings import MAX_REPLICAS

MAX_PROFILE_STEPS = 1000


class DeploymentBody(Wire):
    """`replicas` is the number of engine processes, which share the version's weights and one queue. `draft` is a small
    version with the same tokens that makes drafts for it. `engine` is the engine that serves it, `dosirak` or `vllm`,
    with options of its own. `max_model_len` is the most positions of a sequence, at most the version's own."""

    model: ModelReference
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    draft: ModelReference | None = None
    engine: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    engine_options: Annotated[dict[str, Annotated[int | str, BY_TYPE]], Field(max_length=64)] | None = None
    max_model_len: Annotated[int, Field(ge=1, le=1 << 31)] | None = None


class ProfileBody(Wire):
    """`steps` of the version's engine are recorded; `kind` says what of them: seconds of `operators`, their `memory`
    too, or Python's `stacks` too."""

    steps: Annotated[int, Field(ge=1, le=MAX_PROFILE_STEPS)]
    model: ModelReference | None = None
    kind: Kind = "operators"


DeploymentState = Literal["loading", "ready", "restarting", "draining", "failed"]


class Links(Shown):
    ui: str
    docs: str
    openapi: str
    info: str
    metrics: str


class Example(Shown):
    """A request to try. `curl` is the same as a command; a server with a key names the variable that holds it."""

    path: str
    body: Object
    curl: str


class Root(Shown):
    """What runs here. `model`, `digest` and `precision` are null while there is no default model, `device` while it is
    not loaded; `kernels` is empty then."""

    name: Literal["Dosirak"]
    version: str
    model: str | None
    digest: str | None
    precision: Precision | None
    state: str
    device: str | None
    kernels: list[str]
    links: Links
    example: Example


class Info(Shown):
    """TGI's fields, then ours. `engine` is null while the default model is not loaded. `host` and `measured` are as in
    `dosirak doctor --json`; `measured` is null before it ran."""

    model_id: str
    model_sha: str
    model_dtype: str
    model_device_type: str | None
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    max_client_batch_size: int
    router: str
    version: str
    model: str
    digest: str
    precision: Precision
    architecture: str
    engine: Object | None
    settings: Object
    host: Object
    measured: Object | None


class Blocks(Shown):
    """Blocks of the KV cache in memory; `cached` of them hold a known prefix; `offloaded` blocks are on disk."""

    total: int
    free: int
    cached: int
    offloaded: int


class ReplicaShown(Shown):
    pid: int | None
    device: str | None
    state: str
    running: int
    waiting: int
    restarts: int
    silent_seconds: float
    kv_blocks: Blocks


class Guarantees(Shown):
    """What holds of an engine's answers: whether they are the same in any batch, which ones go on exactly after the
    death of an engine process, and in which batches a seed gives the same tokens again."""

    batch_invariant: bool
    replay: Literal["exact", "greedy"]
    seed: Literal["any_batch", "alone"]


class EngineShown(Shown):
    """`version` is null until an engine that is not ours has told its own."""

    name: Literal["dosirak", "vllm"]
    version: str | None
    guarantees: Guarantees


class SlowPathShown(Shown):
    """A slower way than the engine's fastest serves a version, for these `reasons`. A decode step of one sequence takes
    `step_ms`. Memory gives its weights in `weights_ms`, so the fastest way would be up to `slowdown` times as fast.
    Both are null where the host's memory was not measured."""

    reasons: list[str]
    step_ms: float
    weights_ms: float | None
    slowdown: float | None


class DeploymentShown(Shown):
    """`phase` says what a loading deployment does, `error` why a deployment failed, `draft` which version makes drafts
    for it, `engine` what serves it. `shared_bytes` of the weights are in memory once for all replicas. `slow_path` is
    null where the engine's fastest way serves. `max_model_len` are the positions of a sequence."""

    model: str
    digest: str
    state: DeploymentState
    phase: str
    error: str | None
    precision: Precision
    draft: str | None
    max_model_len: int
    engine: EngineShown
    memory_bytes: int | None
    shared_bytes: int | None
    slow_path: SlowPathShown | None
    load_seconds: float
    in_flight: int
    replicas: list[ReplicaShown]


class DeploymentList(Shown):
    data: list[DeploymentShown]


class StepCost(Shown):
    """seconds = constant + per token + per token of context + per query-key pair; null before it is fitted."""

    constant_seconds: float | None
    seconds_per_token: float | None
    seconds_per_kv_token: float | None
    seconds_per_attention_pair: float | None
    error_ratio: float


class Step(Shown):
    seconds: float
    tokens: int
    sequences: int


class Decisions(Shown):
    token_budget: int
    preemptions: int
    backlog_seconds: float
    deadlines_out_of_reach: int
    draft_tokens: int
    accepted_draft_tokens: int


class BatchingOfVersion(Shown):
    model: str
    state: str
    steps: int
    cost: StepCost
    last_step: Step
    decisions: Decisions


class Batching(Shown):
    data: list[BatchingOfVersion]


class LoadedVersion(Shown):
    model: str
    digest: str
    state: DeploymentState


class InstanceShown(Shown):
    """A server. `this` marks the one that answers. `ready` and `loaded` are what it told with its last heartbeat;
    without a heartbeat for six seconds it is not `living`."""

    id: str
    software: str
    this: bool
    started_at: str
    heartbeat_seconds: float
    living: bool
    ready: bool
    loaded: list[LoadedVersion]


class InstanceList(Shown):
    data: list[InstanceShown]
