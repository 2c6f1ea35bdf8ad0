"""The engine's values: what is asked, what is being decoded, what one step takes in and gives out.

Token ids only: nothing here knows text, HTTP, tensors or time zones. All times are seconds of `time.monotonic()`,
which is one clock for every process of a machine; `Request.deadline` is a point on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from service.engine.lookup import Lookup


class FinishReason(StrEnum):
    """Why a sequence ended. Every admitted request ends exactly once with one of these."""

    STOP = "stop"  # an end-of-sequence or stop token was sampled
    LENGTH = "length"  # `max_tokens` or the context window was reached
    DEADLINE = "deadline"  # `Request.deadline` passed
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the model gave no usable distribution (NaN or all -inf)
    CONTENT_FILTER = "content_filter"  # the guard met what it stops at; never an engine's reason


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Valid by construction at the API's edge; the engine does not check again.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1 and the penalties' neutral values switch
    the step off. `seed` is always set: the token at output position i depends on (seed, i) and the logits alone.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """None: no logprobs. N >= 0: the sampled token's, and those of the N likeliest, from the raw distribution."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for every prompt position but the first; switches prefix reuse off for this request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted generation. `emitted` holds output tokens that an earlier engine process already gave out (replay):
    they are prefilled again and never emitted twice. `cache_salt` keeps prefix blocks of different owners apart."""

    id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    emitted: tuple[int, ...] = ()
    cache_salt: str = ""
    emitted_prompt_logprobs: int = 0
    """As `emitted`, for prompt positions: so many of their logprobs were already given out."""
    adapter: str = ""
    """Name of the adapter that computes it over the base; "" is the base alone."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms. `top` is sorted, likeliest first, ties by lower id."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What the runner gives for one scheduled sequence. `token_id` is None where the logits held no usable number."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """A step over prompt positions [a, b) tells those of tokens a+1 .. b: all chunks together, each position once."""
    following: tuple[SampledToken, ...] = ()
    """The tokens after it, sampled in the same step behind drafts that came true: one for each of these."""


class SequenceStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """The decoding state of one request. Owned by the scheduler; the runner reads it and changes nothing.

    token_ids   [ prompt ............ | output ....... ]
                  0 .. num_prompt-1     num_prompt .. len-1
    in KV cache [ 0 .. num_computed_tokens-1 ]
    this step   [ num_computed_tokens .. num_computed_tokens+n-1 ], samples iff that reaches the last known token

    Of an encoder-decoder model the prompt is the encoder's input, filled up to whole blocks, and then what the decoder
    starts with. The first num_encoder_slots positions of the KV cache hold what the decoder's layers see of the
    encoder's output; they are computed in one step, and at positions behind them the decoder is as any other.
    """

    request: Request
    token_ids: list[int]
    num_prompt_tokens: int
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    scheduled_at: float | None = None
    first_token_at: float | None = None
    num_preemptions: int = 0
    num_steps: int = 0
    batch_size_sum: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    """Chained hashes of its first full blocks, as far as the block manager has needed them."""
    num_prompt_logprobs: int = 0
    """Prompt logprobs computed since the last admission: a preempted sequence computes them again ..."""
    num_prompt_logprobs_emitted: int = 0
    """... and gives out only those past this number."""
    num_expected_cached_tokens: int = 0
    """While it waits: how much of it was cached when it joined the queue."""
    lookup: Lookup | None = None
    """Where its drafts come from; made when it first decodes in a step in which drafts pay."""
    num_encoder_slots: int = 0
    """Whole blocks of positions; 0 without an encoder."""

    @classmethod
    def of(cls, request: Request, decoder_start: tuple[int, ...] = (), block_size: int = 1) -> Sequence:
        """`decoder_start`: what an encoder-decoder model's decoder starts with; empty for a model without encoder."""
        prompt, slots = request.token_ids, 0
        if decoder_start:
            padding = -len(prompt) % block_size
            slots = len(prompt) + padding
            prompt = (*prompt, *[0] * padding, *decoder_start)
        emitted = request.emitted_prompt_logprobs
        return cls(
            request,
            [*prompt, *request.emitted],
            len(prompt),
            num_prompt_logprobs_emitted=emitted,
            num_encoder_slots=slots,
        )

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens that are not in the KV cache yet; 1 for a sequence that decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def decoder_token_ids(self) -> list[int]:
        """Those that the decoder reads and writes: all, without an encoder."""
        return self.token_ids[self.num_encoder_slots :] if self.num_encoder_slots else self.token_ids


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`sequence` computes its next `num_tokens` tokens in this step; blocks for them are already in its table
    (which may reach further: a prompt gets all its blocks at admission).

    The last of them may be drafts, guesses at what follows its last known token. Every row from that token on samples;
    what was sampled behind a draft that is not the token sampled before it is dropped, and its slot written again.
    """

    sequence: Sequence
    num_tokens: int
    draft_token_ids: tuple[int, ...] = ()

    @property
    def num_known_tokens(self) -> int:
        """Those that are no drafts."""
        return self.num_tokens - len(self.draft_token_ids)

    @property
    def samples(self) -> bool:
        """True when the step reaches the sequence's last known token, so that a new one is sampled."""
        sequence = self.sequence
        known = self.num_tokens - len(self.draft_token_ids)
        return sequence.num_computed_tokens + known == len(sequence.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """What is computed, drafts last."""
        start = self.sequence.num_computed_tokens
        if self.num_tokens == 1:
            return [self.sequence.token_ids[start]]
        return [*self.sequence.token_ids[start : start + self.num_known_tokens], *self.draft_token_ids]


@dataclass(frozen=True, slots=True)
class Copy:
    """A block's content goes to a slot of the spill file; or, `restores`, comes back from there."""

    block: int
    slot: int
    restores: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work: no prefill and decode modes, only numbers of tokens. `copies` come before all else, one after
    the other: a block or slot may be in several of them."""

    scheduled: tuple[Scheduled, ...]
    copies: tuple[Copy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """News of one sequence after one step, one a token: a step that verified drafts gives several, in order. A sampled
    stop token is part of `token_ids`.

    `queue_seconds` and `prefill_seconds` come with the first token, `batch_size_mean` (mean number of sequences in
    this sequence's steps) with the last output. `num_cached_tokens` counts prompt tokens found in the prefix cache
    at the first admission.
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


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot after one step, for metrics and `/v1/deployments`. Block counts conserve: free + used + cached = total
    (`cached`: unreferenced but still holding a reusable prefix)."""

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
    """Mean absolute relative error of the line's last predictions."""
    backlog_seconds: float = 0.0
    """Forecast: until every prompt that is known now has its first token."""
    wait_seconds: float = 0.0
    """The last wait for one more request before a first step; 0 where none was worth it."""
    waits_total: int = 0
    hopeless_total: int = 0
    """Requests ended before their first step, because their deadline could not be met."""
    draft_tokens_total: int = 0
    accepted_tokens_total: int = 0
    """Drafts verified, and those of them that came true."""
    blocks_spilled: int = 0
    """Slots of the spill file that hold a known prefix; some of these are in memory as well."""
    restored_tokens_total: int = 0
    """Prompt tokens found in the spill file, which count as found in the prefix cache."""
