"""A number of any sampling field, in any dialect, acts within what fp32 can compute, or it is refused by name.

The engine computes probabilities in fp32, where 1e-46 is 0 and 1e39 is infinite: what comes to it must be neither.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.engine.protocol.messages import NEUTRAL, SamplingParams
from tests.fake_service import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES = [{"role": "user", "content": "hi"}]
EDGES = (0.0, 1.0, 2.0, 1e-5, 1e-9, 1e-38, 1e-45, 1e-46, 5e-324, 2.2250738585072014e-308, 0.01, 100.0, 1e38, 3.5e38)
ODD = [sign * value for value in (*EDGES, 1.7976931348623157e308, 1 - 2**-53, 1 + 2**-52) for sign in (1, -1)]
NUMBERS = st.one_of(
    st.sampled_from(ODD),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True),
    st.floats(0, 2, allow_subnormal=True),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**31, -1, 0, 1]),
)
SHARED = (*NEUTRAL, "seed", "logit_bias")
NATIVE = (*SHARED, "max_new_tokens", "min_new_tokens", "truncate", "top_n_tokens", "n", "best_of")
OPENAI = (*SHARED, "max_tokens", "min_tokens", "n", "deadline_ms", "priority")
DIALECTS = [
    *(("/generate", "inputs", field) for field in NATIVE),
    *(("/generate_stream", "inputs", field) for field in NATIVE),
    *(("/generate", "text_input", field) for field in SHARED),
    *(("/v1/completions", "prompt", field) for field in (*OPENAI, "logprobs", "best_of")),
    *(("/v1/chat/completions", "messages", field) for field in (*OPENAI, "top_logprobs", "max_completion_tokens")),
]


def body_of(source: str, field: str, number: float) -> dict[str, Any]:
    value = {"5": number} if field == "logit_bias" else number
    prompt: Any = MESSAGES if source == "messages" else "x"
    if source in ("prompt", "messages"):
        return {source: prompt, "max_tokens": 2, "logprobs": True if source == "messages" else 1, field: value}
    return {source: prompt, "parameters": {"max_new_tokens": 2, "do_sample": True, field: value}}


@pytest.mark.parametrize(("path", "source", "field"), DIALECTS)
@given(number=NUMBERS)
@example(number=1e-38)
@example(number=1e-40)
@example(number=5e-324)
@example(number=1.7976931348623157e308)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_number_acts_or_is_refused_by_name(
    shared: World, path: str, source: str, field: str, number: float
) -> None:
    shared.engine.requests.clear()
    response = await shared.client.post(path, json=body_of(source, field, number))
    if response.status_code == 200:
        for request in shared.engine.requests:
            assert_computable(request.params)
        return
    if (field, response.status_code) == ("deadline_ms", 504):
        return  # a millisecond may pass before or behind the engine's door
    assert 400 <= response.status_code < 500, response.text
    assert field.removeprefix("max_") in response.text, response.text
    assert not shared.engine.requests


def assert_computable(params: SamplingParams) -> None:
    """Each number is finite and not 0 where it divides, also in fp32."""
    assert params.temperature == 0 or 1e-5 <= params.temperature <= 100
    assert 0.01 <= params.repetition_penalty <= 100
    for name in ("top_p", "typical_p"):
        assert 1e-9 <= getattr(params, name) <= 1
    assert params.min_p == 0 or 1e-9 <= params.min_p <= 1
    assert 0 <= params.seed < 2**63 and 0 <= params.top_k < 2**31
    biases = [bias for _, bias in params.logit_bias]
    numbers = [value for value in asdict(params).values() if isinstance(value, float)]
    assert np.isfinite(np.array([*numbers, *biases], np.float32)).all()


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", str(2**63), "9" * 5000])
@pytest.mark.parametrize(("path", "source"), [("/generate", "inputs"), ("/v1/completions", "prompt")])
async def test_what_is_no_number_of_json_is_refused(shared: World, path: str, source: str, text: str) -> None:
    raw = json.dumps(body_of(source, "temperature", 0.5)).replace("0.5", text)
    response = await shared.client.post(path, content=raw, headers={"Content-Type": "application/json"})
    assert 400 <= response.status_code < 500 and "number" in response.text


@pytest.mark.parametrize(("path", "source"), [("/generate", "inputs"), ("/v1/completions", "prompt")])
async def test_almost_no_temperature_is_greedy(shared: World, path: str, source: str) -> None:
    for temperature, acts_as in ((9.9e-6, 0.0), (1e-5, 1e-5), (5e-324, 0.0)):
        await shared.client.post(path, json=body_of(source, "temperature", temperature))
        assert shared.engine.requests[-1].params.temperature == acts_as
