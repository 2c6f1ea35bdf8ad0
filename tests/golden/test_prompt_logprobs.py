"""Prompt logprobs are told in parts: the same figures, and never more rows of logits than a part has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from service.engine.protocol.messages import SamplingParams
from service.engine.runner import parts
from service.engine.runner.forwards.step import Step
from tests.golden.conftest import Load
from tests.golden.tiny import Answer, Loaded, answer, request

PARAMS = SamplingParams(max_tokens=3, prompt_logprobs=2, logprobs=0)
LENGTHS = (61, 5, 300, 40)


def answers(loaded: Loaded) -> dict[str, Answer]:
    requests = [request(str(length), [(7 * i + length) % 199 for i in range(length)], PARAMS) for length in LENGTHS]
    return answer(loaded.core(budget=1000), {0: requests})


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_parts_tell_the_same_with_few_rows_of_logits(load: Load, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(name, "fp32")
    whole = answers(loaded)
    forward, rows = loaded.runner.forward, list[int]()

    def noting(step: Step) -> torch.Tensor:
        logits = forward(step)
        rows.append(len(logits))
        return logits

    monkeypatch.setattr(parts, "PART_ROWS", 32)
    monkeypatch.setattr(loaded.runner, "forward", noting)
    assert answers(loaded) == whole
    assert max(rows) <= 32 + 16, "a part, the rows that sample, and padding"
    assert [len(whole[str(length)].prompt_logprobs) for length in LENGTHS] == [length - 1 for length in LENGTHS]


@pytest.mark.parametrize(("name", "precision"), [("llama", "fp32"), ("llama", "int8"), ("gpt2", "fp32")])
def test_the_end_of_a_prompt_is_told_behind_a_cached_prefix(load: Load, name: str, precision: str) -> None:
    """As choices need it: the same bits as those of the whole prompt, and no decode step."""
    loaded, prompt = load(name, precision), [(7 * i) % 199 for i in range(61)]
    told = SamplingParams(max_tokens=0, prompt_logprobs=1)
    whole = answer(loaded.core(), {0: [request("a", prompt, told)]})["a"].prompt_logprobs
    ends = replace(told, prompt_logprobs_start=50)
    crowd = [request(str(i), [i, *prompt[:20]], SamplingParams(max_tokens=9)) for i in range(3)]
    found = answer(loaded.core(33), {0: [*crowd, request("first", prompt, ends)], 9: [request("again", prompt, ends)]})
    assert found["first"].prompt_logprobs == found["again"].prompt_logprobs == whole[49:]
    assert found["again"].num_cached_tokens == 48, "whole blocks before the row that predicts token 50"
    assert found["again"].token_ids == ()
