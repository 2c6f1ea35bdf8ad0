"""The frames between the API process and an engine process, both ways: 4-byte big-endian length, then msgpack.

The only file that both sides share. Token ids and numbers only: nothing here knows text, HTTP or tensors. All times are
seconds of `time.monotonic()`, which is one clock for every process of a machine; `Request.deadline` is a point on it.
The engine sends one frame a step, not one a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
HEADER_BYTES: Final = 4
MIN_TEMPERATURE: Final = 1e-5
"""Below it sampling is greedy: scores over a smaller temperature are no longer finite in fp32."""


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
    """How the next token is chosen. The API refuses bad values by name; `EngineCore.add` checks once more (see
    `validation`), and a bad one ends its own request.

    `temperature` below MIN_TEMPERATURE is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1 and the penalties'
    neutral values switch the step off. `seed` is always set: the token at output position i depends on (seed, i) and
    the logits alone.
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


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms. `top` is sorted, likeliest first, ties by lower id."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class StepOutput(msgspec.Struct, frozen=True, array_like=True):
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
    hopeless_total: int = 0
    """Requests ended before their first step, because their deadline could not be met."""
    draft_tokens_total: int = 0
    accepted_tokens_total: int = 0
    """Drafts verified, and those of them that came true."""
    blocks_offloaded: int = 0
    """Slots of the offload file that hold a known prefix; some of these are in memory as well."""
    restored_tokens_total: int = 0
    """Prompt tokens found in the offload file, which count as found in the prefix cache."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to know. Already resolved: nothing here reads the environment.

    `kv_cache_dtype` is "int8" or, "auto", that of the model. `kv_cache_bytes` 0 lets the engine choose from the memory
    that is free after the weights are loaded, less `promised_bytes`: what other engines of this service may still take
    for theirs, whose pages come with use.
    `max_model_len` is in positions of one sequence; of an encoder-decoder model, whose decoder starts with
    `decoder_start`, those of the encoder's input and of the decoder together.
    `kv_offload_bytes` of disk in `offload_directory` keep blocks that memory has no room for; 0 is none.
    `record` is the file that makes the next load of the same version shorter; "" is none. `share_weights`: pack the
    weights into memory that other processes can map; `packed_weights` is where another has done so. `adapters` are
    (name, directory) of those to load at once; `LoadAdapter` brings others. `heartbeat_seconds` lie between two
    Heartbeat frames.
    """

    model_dir: str
    precision: str
    dtype: str = "bf16"
    device: str = "auto"
    threads: int = 0
    max_model_len: int
    decoder_start: tuple[int, ...] = ()
    block_size: int = 16
    kv_cache_bytes: int = 0
    kv_cache_dtype: str = "auto"
    kv_offload_bytes: int = 0
    offload_directory: str = ""
    promised_bytes: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    inter_token_latency_target: float = 0.1
    prefix_caching: bool = True
    speculation: bool = True
    record: str = ""
    share_weights: bool = False
    packed_weights: str = ""
    adapters: tuple[tuple[str, str], ...] = ()
    heartbeat_seconds: float = 1.0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded, as `/info` and `/v1/deployments` show it."""

    pid: int
    device: str
    dtype: str
    precision: str
    forward: str
    """"decoder" (our fused forward) or "transformers" (the library's own)."""
    kernels: tuple[str, ...] = ()
    threads: int
    memory_bytes: int
    load_seconds: float
    block_size: int
    blocks_total: int
    kv_bytes_per_block: int
    vocab_size: int = 0
    """Rows of the embedding: token ids run from 0 to this, excluded."""
    packed_weights: str = ""
    """Where other processes of this user can map what this one has packed; "" where they cannot."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag="add"):
    requests: tuple[Request, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_ids: tuple[str, ...]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Load the adapter of the version in `directory`, so that requests can name it; those that come meanwhile wait.
    The answer is AdapterLoaded, with the same ticket; none where UnloadAdapter or another order came first."""

    name: str
    directory: str
    ticket: int


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Take no more requests for an adapter, and free it when the last of them has ended."""

    name: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish what runs, then exit 0. Closing the socket instead ends the engine at once."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    phase: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    """The adapter is there; or it is not, and `error` says why."""

    name: str
    ticket: int
    error: str = ""


class Step(msgspec.Struct, frozen=True, tag="step"):
    outputs: tuple[StepOutput, ...]
    stats: EngineStats


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """A thread of the engine process says that the process lives, about once a second while it has something to do.

    `step_seconds`: how long the step in progress has run; 0 between steps. `forecast_seconds` is what the cost line
    says it takes; None as long as too few steps were measured.
    """

    step_seconds: float
    forecast_seconds: float | None


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine could not load or could not go on; the process exits after this frame."""

    message: str


ToEngine = Start | Add | Abort | LoadAdapter | UnloadAdapter | Shutdown
FromEngine = Loading | Ready | AdapterLoaded | Step | Heartbeat | Fatal

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """One whole frame, header included. Raises ValueError when it would pass MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(body)} bytes passes the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def decode_to_engine(body: bytes) -> ToEngine:
    """Raises msgspec.DecodeError on anything but a whole, known message."""
    return _to_engine.decode(body)


def decode_from_engine(body: bytes) -> FromEngine:
    """As `decode_to_engine`, the other way."""
    return _from_engine.decode(body)


class FrameReader:
    """Cuts a byte stream into frames: bytes in as they come, the bodies of whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by `data`, in order. Raises ValueError on a header past MAX_FRAME_BYTES: the stream is
        not ours, or out of step, and cannot be read on."""
        self._buffer += data
        bodies, start = [], 0
        while len(self._buffer) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            size = int.from_bytes(self._buffer[start:body], "big")
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {size} bytes passes the limit of {MAX_FRAME_BYTES}")
            if len(self._buffer) < body + size:
                break
            bodies.append(bytes(self._buffer[body : body + size]))
            start = body + size
        del self._buffer[:start]
        return bodies
