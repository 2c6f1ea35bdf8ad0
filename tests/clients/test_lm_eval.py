"""lm-eval works unchanged, and its log-likelihoods are those that transformers computes in fp32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from loadtest.bench.running import free_port
from models.imports.importing import import_source
from models.imports.starter import WEIGHTS
from models.repository.repository import Repository
from tests.clients.running import found_by
from tests.e2e.server import python, running

PAIRS = [
    ["안녕하세요, 불고기 도시락 두 개", " 주세요."],
    ["The lunch box", " is enough for one."],
    ["비빔밥은 얼마예요? 비빔밥은", " 8,900원이에요. 😀"],
    ["I am allergic to", " peanuts"],
    ["감사합니다", "."],
]


def expected(ids: list[int], first: int) -> tuple[float, bool]:
    """The sum of the log-probabilities of `ids[first:]`, and whether each is the likeliest."""
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)[first - 1 : -1]
    told = torch.tensor(ids[first:])
    return float(logprobs.gather(-1, told[:, None]).sum()), bool((logprobs.argmax(-1) == told).all())


@pytest.mark.nightly
async def test_lm_eval(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    import_source(Repository(tmp_path / "data"), str(WEIGHTS), "exact", precision="fp32")
    command = python("-m", "service.cli", "serve")
    with running(command, tmp_path / "data", tmp_path / "log", free_port(), DOSIRAK_DEFAULT_MODEL="exact") as server:
        found = await found_by("lm-eval", server.url, json.dumps(PAIRS))
    for (context, whole), (sum_of, greedy) in zip(found["ids"], found["loglikelihood"], strict=True):
        assert whole[: len(context)] == context and len(whole) > len(context)
        wanted, is_greedy = expected(whole, len(context))
        assert sum_of == pytest.approx(wanted, abs=1e-3)
        assert greedy is is_greedy
    assert found["rolling"][0] < found["loglikelihood"][0][0]
    assert len(found["generated"][0]) > 0
