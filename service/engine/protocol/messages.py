"""Messages are what the API process and an engine process tell each other; `frames` writes and reads them.

Both sides share these two files, `config` and `work`; `profiling` is the engine process's alone. Messages hold token
ids and numbers; they know no text, HTTP or tensors. All times are seconds of `time.monotonic()`, which is one clock for
every process of a machine. `Request.deadline` is a point on it. The engine sends one frame per step, not one per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

import msgspec

from service.engine.protocol.config import EngineConfig
from service.engine.protocol.work import NO_WORK, ModelWork, Peaks, PhaseWork, SlowPath

MAX_STEPS: Final = 32
"""The most step records that a frame carries, and that the API process keeps of an engine process."""
MIN_TEMPERATURE: Final = 1e-5
"""Below it sampling is greedy: scores over a smaller temperature are no longer finite in fp32."""


class FinishReason(StrEnum):
    """The reason why a sequence ended. Every admitted request ends exactly once with one of these."""

    STOP = "stop"  # an end-of-sequence or stop token was sampled
    LENGTH = "length"  # `max_tokens` or the context window was reached
    DEADLINE = "deadline"  # `Request.deadline` passed
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the model gave no usable distribution (NaN or all -inf), or the grammar could not be followed
    CONTENT_FILTER = "content_filter"  # the guard stopped the answer; never an engine's reason


class Pooling(StrEnum):
    """How a prompt's hidden states, behind the final norm, become one vector."""

    MEAN = "mean"
    LAST = "last"  # the last token's
    CLS = "cls"  # the first token's


def _within(neutral: float, least: float, most: float = math.inf, *, drops: bool = False) -> Any:
    """Returns the field of a parameter that shapes a distribution: `neutral` switches it off, and the engine can
    compute with what lies from `least` to `most`. One that `drops` tokens from the distribution is a filter."""
    return field(default=neutral, metadata={"bounds": (least, most), "drops": drops})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The API refuses bad values by name; `EngineCore.add` checks once more (see
    `validation`), and a bad one ends its own request.

    `temperature` below MIN_TEMPERATURE is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1 and the penalties'
    neutral values switch the step off. `seed` is always set: the token at output position i depends on (seed, i) and
    the logits alone.
    """

    max_tokens: int = 0
    min_tokens: int = 0
    temperature: float = _within(0.0, 0.0, 1e4)
    top_p: float = _within(1.0, 0.0, 1.0, drops=True)
    top_k: int = _within(0, 0, drops=True)
    min_p: float = _within(0.0, 0.0, 1.0, drops=True)
    typical_p: float = _within(1.0, 0.0, 1.0, drops=True)
    top_n_sigma: float = _within(0.0, 0.0, drops=True)
    repetition_penalty: float = _within(1.0, 1e-4, 1e4)
    frequency_penalty: float = _within(0.0, -1e4, 1e4)
    presence_penalty: float = _within(0.0, -1e4, 1e4)
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """None: no logprobs. N >= 0: logprobs of the sampled token and of the N likeliest, from the raw distribution."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for every prompt position from `prompt_logprobs_start` on. A request reuses no prefix past that
    position's predecessor, so with the default it reuses none."""
    prompt_logprobs_start: int = 1
    pooling: Pooling | None = None
    """The output is the prompt's hidden states, pooled; `max_tokens` is 0. Only the last token's state may come behind
    a cached prefix."""
    grammar: str = ""
    """What the output must look like, in llguidance's language; "" is anything. The sequence ends with STOP when the
    grammar is complete."""
    grammar_begun: str = ""
    """What the output goes on from: a text that the grammar has taken in before the first token."""


NEUTRAL: Final[dict[str, Any]] = {
    each.name: each.default for each in fields(SamplingParams) if "bounds" in each.metadata
}
"""The parameters that shape a distribution, with the values that switch them off."""
FILTERS: Final = tuple(each.name for each in fields(SamplingParams) if each.metadata.get("drops"))
BOUNDS: Final[dict[str, tuple[float, float]]] = {
    each.name: each.metadata["bounds"] for each in fields(SamplingParams) if each.name in NEUTRAL
}


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted generation. `emitted` holds output tokens that an earlier engine process has given out (replay). The
    engine prefills them again and never emits them twice. `cache_salt` keeps prefix blocks of different owners
    apart. Owners who wait for one engine take turns."""

    id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    emitted: tuple[int, ...] = ()
    cache_salt: str = ""
    owner: str = ""
    emitted_prompt_logprobs: int = 0
    """As `emitted`, for prompt positions: the number of their logprobs that were given out."""
    adapter: str = ""
    """Name of the adapter over the base that computes the request; "" is the base alone."""
    is_streamed: bool = False
    """Whether the client reads along, so that the gaps between its tokens matter."""


AGEING_SECONDS: Final = 10.0


def aged(priority: int, waited: float) -> float:
    """Returns the priority with what a client's request has gained in `waited` seconds: one for each AGEING_SECONDS.
    Background work gains nothing."""
    return priority + max(0.0, waited) // AGEING_SECONDS if priority >= 0 else priority


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of one position. `top` is sorted, likeliest first, ties by lower id."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class StepOutput(msgspec.Struct, frozen=True, array_like=True):
    """News of one sequence after one step, one per token. A step that verified drafts gives several, in order. A
    sampled stop token is part of `token_ids`. `pooled` is the vector of a request with `pooling`, fp32, with its end.

    `queue_seconds` and `prefill_seconds` come with the first token. `batch_size_mean`, the mean number of sequences in
    this sequence's steps, comes with the last output. `num_cached_tokens` counts prompt tokens found in the prefix
    cache at the first admission. `replayed_at` is the engine client's own news, in an output without tokens: from then
    on another engine process computes this sequence.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    batch_size_mean: float | None = None
    num_preemptions: int = 0
    replayed_at: float | None = None
    pooled: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot after one step, for metrics and `/v1/deployments`. Free + used + cached blocks = total. A cached block
    is unreferenced but still holds a reusable prefix."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    prefix_queried_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    step_seconds: float = 0.0
    step_tokens: int = 0
    step_sequences: int = 0
    token_budget: int = 0
    cost: tuple[float, ...] = ()
    """The fitted cost line (a, b, c, d): seconds = a + b·tokens + c·kv_tokens + d·prefill_tokens·context."""
    cost_error: float = 0.0
    """Mean absolute relative error of the cost line's last predictions."""
    backlog_seconds: float = 0.0
    """Forecast seconds until every known prompt has its first token."""
    seats: int = 0
    """Sequences that can run at once; 0 where that is not known."""
    seat_seconds: float = 0.0
    """Forecast seconds from one seat of a full batch that becomes free to the next; 0 before it is known."""
    hopeless_total: int = 0
    """Requests that ended before their first step because their deadline could not be met."""
    draft_tokens_total: int = 0
    accepted_tokens_total: int = 0
    """Verified drafts, and the drafts among them that were right."""
    certain_tokens_total: int = 0
    """Tokens that a grammar left alone and that shared the step of the token before them."""
    blocks_offloaded: int = 0
    """Blocks of the offload file that hold a known prefix; some of them are in memory too."""
    restored_tokens_total: int = 0
    """Prompt tokens found in the offload file. They also count as found in the prefix cache."""
    prefill_tokens_total: int = 0
    """Tokens of prefill chunks: prompts without their cached part, and what a preemption or a replay repeats."""
    prefill: PhaseWork = NO_WORK
    decode: PhaseWork = NO_WORK


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The figures of one step: its size, the cost line's prediction before the step, and the measured seconds. The
    prediction leaves out the copies to and from the offload file; `seconds` include them. Of a draft model's passes
    both hold the measured seconds."""

    tokens: int
    sequences: int
    predicted_seconds: float
    seconds: float


class Limit(msgspec.Struct, frozen=True, array_like=True):
    """The least and the most of a sampling parameter."""

    parameter: str
    least: float
    most: float


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a loaded engine, as `/info` and `/v1/deployments` show them."""

    pid: int
    device: str
    dtype: str
    precision: str
    forward: str
    """"decoder" (our fused forward), "transformers" (the library's own) or "vllm"."""
    version: str = ""
    """The engine's own version, where it is not this project's."""
    kernels: tuple[str, ...] = ()
    threads: int
    memory_bytes: int
    load_seconds: float
    block_size: int
    blocks_total: int
    kv_bytes_per_block: int
    """In all layers, of the model and of its draft model."""
    window_blocks_total: int = 0
    """The number of blocks of the layers with a sliding window, where that is another one."""
    window_bytes_per_block: int = 0
    """In the layers with a sliding window; a part of `kv_bytes_per_block`."""
    vocab_size: int = 0
    """Rows of the embedding: token ids run from 0 to this, excluded."""
    no_embeddings: str = ""
    """Why requests cannot have `pooling`; "" if they can."""
    no_grammars: str = ""
    """Why requests cannot have a grammar; "" if they can."""
    limits: tuple[Limit, ...] = ()
    """Where the engine computes with fewer values of a sampling parameter than the API takes."""
    packed_weights: str = ""
    """Where other processes of this user can map the packed weights; "" if they cannot."""
    shared_bytes: int = 0
    """Bytes of the packed weights that the version's replicas share; 0 if each has its own."""
    work: ModelWork = ModelWork()
    slow_path: SlowPath | None = None
    peaks: Peaks | None = None
    no_peaks: str = ""
    """Why the peaks are not known; "" if they are."""

    @property
    def kv_cache_bytes(self) -> int:
        """The bytes of the KV cache when it is full."""
        elsewhere = self.kv_bytes_per_block - self.window_bytes_per_block
        in_windows = (self.window_blocks_total or self.blocks_total) * self.window_bytes_per_block
        return self.blocks_total * elsewhere + in_windows


class Start(msgspec.Struct, frozen=True, tag="start"):
    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag="add"):
    requests: tuple[Request, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_ids: tuple[str, ...]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Load the adapter of the version in `directory`, so that requests can name it. Requests for it wait meanwhile. The
    answer is AdapterLoaded with the same ticket; there is none if UnloadAdapter or another order came first."""

    name: str
    directory: str
    ticket: int


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Take no more requests for an adapter, and free it when the last one has ended."""

    name: str


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """Record the next `steps` steps into files in `directory`. The answer is one Profiled of the same id, at the latest
    when `patience_seconds` have passed without a step. `kind` is "operators", "memory" or "stacks"."""

    id: str
    directory: str
    steps: int
    kind: str = "operators"
    patience_seconds: float = 60.0


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish the running requests, then exit 0. Closing the socket instead ends the engine at once."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    phase: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    """The adapter is loaded, or `error` says why not."""

    name: str
    ticket: int
    error: str = ""


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """A profile has ended: its recorded steps, their tokens and seconds, or in `error` the clause that says why it
    failed."""

    id: str
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """`steps` are the computed steps since the last frame, oldest first, the newest MAX_STEPS at most."""

    outputs: tuple[StepOutput, ...]
    stats: EngineStats
    steps: tuple[StepRecord, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The process lives. A thread of the engine process sends this about once a second while there is work.

    `step_seconds` is how long the step in progress has run; 0 between steps. `forecast_seconds` is the cost line's
    forecast of the step; None while too few steps were measured.
    """

    step_seconds: float
    forecast_seconds: float | None


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine could not load, or cannot go on. The process exits after this frame."""

    message: str


ToEngine = Start | Add | Abort | LoadAdapter | UnloadAdapter | Profile | Shutdown
FromEngine = Loading | Ready | AdapterLoaded | Profiled | Step | Heartbeat | Fatal
