"""These models describe answers about the model repository: models, versions, reports, aliases, rollouts, jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.repository.disk.journal import Action
from models.repository.report import Effort, ReportState
from models.repository.rollout_record import State as RolloutState
from service.api.shared.answer_schemas import Object, Page, Precision, Shown, Time

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class ModelSummary(Shown):
    name: str
    versions: int
    newest: str
    aliases: dict[str, str]
    bytes: int


class ModelPage(Page[ModelSummary]):
    """Models by name, 100 at a time."""


class LineageShown(Shown):
    """The origin of a version: what was imported, or from which version it was made and how."""

    source: str
    parent: str | None
    parent_digest: str | None
    recipe: str
    tools: list[str]
    author: str


class TextPartShown(Shown):
    """One text: the beginning of its sha256, the tokens that count, and the sum of their -ln p in nats."""

    sha256: str
    tokens: int
    loss: float


class TextSetShown(Shown):
    name: str
    sha256: str
    tokens: int
    parts: list[TextPartShown] = Field(default_factory=list)


class ComparisonShown(Shown):
    """The comparison with the parent on the same text; `kl` in nats, `decode_ratio` by batch size. `clear` is the share
    of the positions where the parent's likeliest token leads by 0.2 nats, `clear_top1_agreement` the share of these
    with the same likeliest token; null in reports of earlier releases. `greedy_agreement` is null in a check."""

    reference: str
    digest: str
    perplexity_change: float
    kl: float
    top1_agreement: float
    greedy_agreement: float | None
    decode_ratio: dict[str, float]
    clear_top1_agreement: float | None = None
    clear: float | None = None


class SpeedShown(Shown):
    host: str
    threads: int
    memory_bytes: int
    load_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: dict[str, float]


class RecalledShown(Shown):
    cell: str
    wording: str
    right: int
    asked: int


class IntervalShown(Shown):
    """The 95 % interval of a figure, and the number of scored tokens, answers, questions or rounds behind it."""

    low: float
    high: float
    items: int


class AmountsShown(Shown):
    """What was measured within the time."""

    texts: int
    answers: int
    answer_tokens: int
    questions: int
    rounds: int
    prefill_tokens: int
    prompt_tokens: int


class ReportShown(Shown):
    """The measurements of a version; `compared` is null for a version without a parent. `intervals` are by the figure's
    path, as `compared.kl`; reports of earlier releases have none, and no `amounts`."""

    digest: str
    created_at: Time
    effort: Effort
    seconds: float
    texts: TextSetShown
    perplexity: float
    compared: ComparisonShown | None
    speed: SpeedShown
    recall: list[RecalledShown]
    tools: list[str]
    intervals: dict[str, IntervalShown] = Field(default_factory=dict)
    amounts: AmountsShown | None = None
    budget_seconds: float | None = None


class VersionShown(Shown):
    """`report` is null before the first measurement, and `report_state` says whether one is being made now. `bytes` is
    the size of its files. `breaks_gate` has a phrase for every limit that the version breaks of a gated alias which
    points to it: a report that was made after the promotion may show that."""

    model: str
    version: str
    digest: str
    created_at: Time
    precision: Precision
    dtype: str
    architecture: str
    parameters: int
    context_window: int
    vocab_size: int
    license: str
    bytes: int
    aliases: list[str]
    breaks_gate: list[str]
    lineage: LineageShown
    report: ReportShown | None
    report_state: ReportState


class VersionFileShown(Shown):
    path: str
    size: int
    sha256: str


class LayerShown(Shown):
    """Modules that are stored in the same way."""

    pattern: str
    dtype: str


class CheckShown(Shown):
    """One figure against its limit. `value` compares with the version `of`; its 95 % interval is from `low` to
    `high`."""

    measure: str
    of: str
    value: float
    low: float
    high: float
    limit: float
    passes: bool
    sentence: str


class GateShown(Shown):
    """How the gate of `alias` judges a version that would replace the present one."""

    alias: str
    checks: list[CheckShown]


class VersionDetails(VersionShown):
    """`gate` is null where the version was not measured, or the alias `production` has no gate. The parsers are null
    where the chat template says how answers are read."""

    files: list[VersionFileShown]
    layers: list[LayerShown]
    card: str | None
    gate: GateShown | None
    reasoning_parser: str | None
    tool_parser: str | None


class ParsersShown(Shown):
    model: str
    reasoning_parser: str | None
    tool_parser: str | None


class ModelVersions(Shown):
    """A page of the versions, newest first, and all aliases. `next_cursor` is null on the last page."""

    name: str
    aliases: dict[str, str]
    versions: list[VersionShown]
    next_cursor: str | None


class Deleted(Shown):
    deleted: str


class Verified(Shown):
    """Where `ok` is false, `error` has the reason."""

    ok: bool
    error: str | None = None
    files: int | None = None
    digest: str | None = None


class SameFiles(Shown):
    same: list[str]
    differ: list[str]


class ComparedVersions(Shown):
    a: VersionShown
    b: VersionShown
    differs: list[str]
    files: SameFiles


class Change(Shown):
    """One change of an alias. `overridden` has the limits of the gate that the version broke."""

    action: Action
    alias: str | None
    version: str | None
    previous: str | None
    reason: str
    actor: str
    time: Time
    overridden: list[str]


class Aliases(Shown):
    data: dict[str, str]


class AliasShown(Shown):
    """`version` is null where the alias was removed."""

    model: str
    alias: str
    version: str | None
    change: Change


class Changes(Shown):
    data: list[Change]


class RolloutGuards(Shown):
    error_rate: float
    ttft_p95_ratio: float
    min_requests: int


class RolloutShown(Shown):
    name: str
    alias: str
    base: str
    candidate: str
    weight: float
    sticky: bool
    shadow: bool
    guards: RolloutGuards
    started_at: Time
    state: RolloutState
    ended_at: str
    reason: str


class ObservedVersion(Shown):
    """`timed` counts the requests whose TTFT is known."""

    requests: int
    timed: int
    error_rate: float
    ttft_p95_ms: float | None


class ObservedShadow(Shown):
    compared: int
    same: float
    agreement: float
    length_ratio: float
    latency_ratio: float


class Observed(Shown):
    base: ObservedVersion
    candidate: ObservedVersion
    shadow: ObservedShadow | None


class RunningRollout(RolloutShown):
    observed: Observed


class Rollouts(Shown):
    rollout: RunningRollout | None
    history: list[RolloutShown]


class JobShown(Shown):
    """`progress` is 0 to 1, and `doing` names the present work. An import's `result` is `{"model", "version",
    "digest"}`."""

    id: str
    kind: Literal["import", "quantize", "evaluate"]
    arguments: Object
    state: JobState
    created_at: Time
    progress: float
    doing: str
    result: Object | None
    error: str | None


class JobList(Shown):
    data: list[JobShown]
