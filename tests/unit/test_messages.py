"""Frames: there and back, cut anywhere, refused when broken."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.protocol.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameReader,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from service.engine.protocol.messages import (
    Abort,
    AdapterLoaded,
    Add,
    EngineConfig,
    EngineStats,
    Fatal,
    FinishReason,
    FromEngine,
    Heartbeat,
    LoadAdapter,
    Loading,
    Ready,
    Shutdown,
    Start,
    Step,
    StepOutput,
    StepRecord,
    ToEngine,
    TokenLogprobs,
    UnloadAdapter,
)
from tests.fakes import fake_info, make_request

CONFIG = EngineConfig(model_dir="m", precision="int8", max_model_len=64)
TO_ENGINE: list[ToEngine] = [
    Start(CONFIG),
    Add((make_request("a", range(5), emitted=(1,), logit_bias=((3, -1.5),), logprobs=2, deadline=4.5),)),
    Abort(("a", "b")),
    LoadAdapter("digest", "/models/chat/2", 3),
    UnloadAdapter("digest"),
    Shutdown(),
]
FROM_ENGINE: list[FromEngine] = [
    Loading("weights", 0.5),
    Ready(fake_info(8, 16)),
    AdapterLoaded("digest", 3, "its files do not fit"),
    Step(
        (StepOutput("a", (5,), (TokenLogprobs(-0.5, ((5, -0.5),)),), finish_reason=FinishReason.STOP),),
        EngineStats(running=1, cost=(1.0, 2.0, 3.0, 4.0)),
        (StepRecord(12, 3, 0.02, 0.021), StepRecord(1, 1, 0.01, 0.009)),
    ),
    Heartbeat(85.5, None),
    Heartbeat(2.0, 1.5),
    Fatal("no weights"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_to_the_engine_and_back(message: ToEngine) -> None:
    assert decode_to_engine(encode(message)[HEADER_BYTES:]) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_from_the_engine_and_back(message: FromEngine) -> None:
    assert decode_from_engine(encode(message)[HEADER_BYTES:]) == message


@given(st.lists(st.integers(1, 50)))
def test_frames_survive_any_cut(cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in FROM_ENGINE)
    reader, bodies, start = FrameReader(), list[bytes](), 0
    for cut in [*cuts, len(stream)]:
        bodies += reader.feed(stream[start : start + cut])
        start += cut
    assert [decode_from_engine(body) for body in bodies] == FROM_ENGINE


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(encode(Fatal("x"))[HEADER_BYTES:])


def test_a_header_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="passes the limit"):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big"))


def test_a_message_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="passes the limit"):
        encode(Fatal("x" * MAX_FRAME_BYTES))
