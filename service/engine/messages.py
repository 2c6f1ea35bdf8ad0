"""The frames between the API process and an engine process, both ways: 4-byte big-endian length, then msgpack.

Token ids and numbers only. One frame a step from the engine, not one a token.
"""

from __future__ import annotations

from typing import Final

import msgspec

from service.engine.request import EngineStats, Request, StepOutput

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
HEADER_BYTES: Final = 4


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to know. Already resolved: nothing here reads the environment.

    `kv_cache_dtype` is "int8" or, "auto", that of the model. `kv_cache_bytes` 0 lets the engine choose from the memory
    that is free after the weights are loaded, less `promised_bytes`: what other engines of this service may still take
    for theirs, whose pages come with use.
    `max_model_len` is in positions of one sequence; of an encoder-decoder model, whose decoder starts with
    `decoder_start`, those of the encoder's input and of the decoder together.
    `kv_spill_bytes` of disk in `spill_directory` keep blocks that memory has no room for; 0 is none.
    `record` is the file that makes the next load of the same version shorter; "" is none. `share_weights`: pack the
    weights into memory that other processes can map; `packed_weights` is where another has done so. `adapters` are
    (name, directory) of those to load at once; `Adapt` brings others.
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
    kv_spill_bytes: int = 0
    spill_directory: str = ""
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
    packed_weights: str = ""
    """Where other processes of this user can map what this one has packed; "" where they cannot."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag="add"):
    requests: tuple[Request, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_ids: tuple[str, ...]


class Adapt(msgspec.Struct, frozen=True, tag="adapt"):
    """Load the adapter of the version in `directory`, so that requests can name it. Answered by Adapted, with the same
    ticket."""

    name: str
    directory: str
    ticket: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Take no more requests for an adapter, and free it when the last of them has ended."""

    name: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish what runs, then exit 0. Closing the socket instead ends the engine at once."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    phase: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class Adapted(msgspec.Struct, frozen=True, tag="adapted"):
    """The adapter is there; or it is not, and `error` says why."""

    name: str
    ticket: int
    error: str = ""


class Step(msgspec.Struct, frozen=True, tag="step"):
    outputs: tuple[StepOutput, ...]
    stats: EngineStats


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine could not load or could not go on; the process exits after this frame."""

    message: str


ToEngine = Start | Add | Abort | Adapt | Release | Shutdown
FromEngine = Loading | Ready | Adapted | Step | Fatal

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
