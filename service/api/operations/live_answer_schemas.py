"""These models describe one event of the live figures."""

from __future__ import annotations

from service.api.operations.answer_schemas import DeploymentState, StepCost
from service.api.shared.answer_schemas import Shown


class LiveBlocks(Shown):
    """Blocks of the KV cache in memory; `cached` of them hold a known prefix."""

    total: int
    free: int
    cached: int


class LivePercentiles(Shown):
    """Exact nearest ranks over the last 60 s, of the newest 8192 observations at most, since somebody listens. `count`
    is their number; the percentiles are null where it is 0."""

    p50: float | None
    p95: float | None
    count: int


class LivePrefixHits(Shown):
    """Of the last 60 s since somebody listens: prompt tokens that were looked up in the prefix cache, and those of them
    that were found."""

    cached_tokens: int
    prompt_tokens: int


class LiveStep(Shown):
    """One step. The prediction was made before the step, by the cost line of that moment, and leaves out copies to and
    from disk."""

    tokens: int
    sequences: int
    predicted_seconds: float
    seconds: float


class LiveVersion(Shown):
    """What one version does. Queues, blocks, prompt tokens, prefix hits, cost and steps are of its engine, which a base
    and its adapters share. `steps` are those since the event before, oldest first, the newest 32 at most."""

    model: str
    state: DeploymentState
    running: int
    waiting: int
    kv_blocks: LiveBlocks
    tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_seconds: LivePercentiles
    itl_seconds: LivePercentiles
    prefix_hits: LivePrefixHits
    cost: StepCost
    steps: list[LiveStep]


class LiveEvent(Shown):
    """The figures of one moment: `at` in Unix seconds. Rates are of the `interval_seconds` before it."""

    at: float
    interval_seconds: float
    versions: list[LiveVersion]
