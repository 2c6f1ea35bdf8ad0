"""The rows of a real embedding bound the token ids that its engine takes."""

from __future__ import annotations

import pytest

from service.engine.protocol.messages import FinishReason, Request, SamplingParams
from tests.fakes import run_all, tokens_of
from tests.golden.conftest import Load
from tests.golden.tiny import VOCABULARY, request

PARAMS = SamplingParams(max_tokens=2)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_an_id_without_a_row_ends_its_own_request(load: Load, name: str) -> None:
    loaded = load(name, "fp32")
    assert loaded.info.vocab_size == VOCABULARY
    core = loaded.core()
    biased = SamplingParams(max_tokens=2, logit_bias=((VOCABULARY, 1.0),))
    refused: dict[str, Request] = {
        "past": request("past", [5, VOCABULARY], PARAMS),
        "below": request("below", [5, -1], PARAMS),
        "bias": request("bias", [5], biased),
    }
    for each in (*refused.values(), request("last", [5, VOCABULARY - 1], PARAMS)):
        core.add(each)
    outputs = run_all(core)
    assert {outputs[name][-1].finish_reason for name in refused} == {FinishReason.ERROR}
    assert len(tokens_of(outputs["last"])) == 2
