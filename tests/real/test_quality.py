"""Golden log-probabilities of a model that others trained: every precision within its bounds of fp32."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loadtest.bench.quality import distances
from loadtest.peers.on_dosirak import Core
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.offline import Loaded, run_all
from service.text.messages import Message
from service.text.tokenizer import Tokenizer
from tests.real.precisions import BOUNDS, DEFAULTS

pytestmark = pytest.mark.nightly
QUESTION = "What is the capital of Japan?"
"""Each token of its answer leads by 0.9 nats and more. (France's first leads by 0.1, and kernels round otherwise.)"""
ANSWER = "The capital of Japan is Tokyo."


@pytest.fixture(scope="module")
def expected(library: Any, prose: list[list[int]]) -> list[Tensor]:
    """The logits of fp32, a tensor for each window."""
    with torch.inference_mode():
        return [library(torch.tensor([ids])).logits[0, :-1] for ids in prose]


@pytest.mark.parametrize("precision", BOUNDS)
def test_predictions_stay_within_bounds(
    loaded: Callable[[str], Loaded], prose: list[list[int]], expected: list[Tensor], precision: str
) -> None:
    version, bound = loaded(precision), BOUNDS[precision]
    engine = Core(version.core(), version.runner)
    found = []
    for ids, theirs in zip(prose, expected, strict=True):
        rows = torch.frombuffer(bytearray(engine.predict(ids)), dtype=torch.float32)
        found.append(distances(theirs, rows.view_as(theirs), ids))
    change, same, kl = (torch.cat([each[at] for each in found]) for at in range(3))
    mean, top_1, perplexity = float(change.abs().mean()), float(same.mean()), math.exp(-float(change.mean())) - 1
    print(f"\n{precision}: {mean:.4f}, top-1 {top_1:.2%}, perplexity {perplexity:+.2%}, KL {float(kl.mean()):.5f}")
    assert version.info.forward == "decoder", version.info.kernels
    assert mean <= bound.logprob_change
    assert top_1 >= bound.top_1
    assert abs(perplexity) <= bound.perplexity
    assert float(kl.mean()) <= bound.kl


@pytest.mark.parametrize("precision", DEFAULTS)
def test_a_plain_question_has_its_answer(loaded: Callable[[str], Loaded], precision: str) -> None:
    version = loaded(precision)
    tokenizer = Tokenizer.load(Path(version.config.model_dir))
    prompt = tokenizer.render_chat([Message("user", QUESTION)])
    params = SamplingParams(max_tokens=24, stop_token_ids=tuple(tokenizer.stop_token_ids))
    outputs = run_all(version.core(), [Request("a", tuple(prompt), params)])["a"]
    text = tokenizer.decode([token for output in outputs for token in output.token_ids])
    assert text.strip() == ANSWER
