"""Prompt logprobs are told in parts: the same figures, and never more rows of logits than a part has."""

from __future__ import annotations

import pytest
import torch

from service.engine.messages import SamplingParams
from service.runner import parts
from service.runner.step import Step
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
