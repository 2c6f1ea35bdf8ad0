"""Frames carry messages between the API process and an engine process: 4-byte big-endian length, then msgpack."""

from __future__ import annotations

from typing import Final

import msgspec

from service.engine.protocol.messages import FromEngine, ToEngine

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
HEADER_BYTES: Final = 4

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """Returns one whole frame, header included. Raises ValueError if it would pass MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(body)} bytes passes the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def decode_to_engine(body: bytes) -> ToEngine:
    """Returns the message of a frame's body. Raises msgspec.DecodeError unless it is one whole, known message."""
    return _to_engine.decode(body)


def decode_from_engine(body: bytes) -> FromEngine:
    """Works as `decode_to_engine`, for frames from the engine."""
    return _from_engine.decode(body)


class FrameReader:
    """Cuts a byte stream into frames: it takes bytes as they come and returns the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the bodies that `data` completes, in order. Raises ValueError on a header past MAX_FRAME_BYTES: the
        stream is not ours, or is damaged, and cannot be read further."""
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
