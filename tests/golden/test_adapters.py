"""A version with an adapter answers as PEFT's own model does, and as the merged weights do; by every kind of kernel."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from service.engine.protocol.messages import FinishReason, Request, SamplingParams
from service.engine.runner.forwards.forward import CannotServe
from tests.effort import drawn, usual
from tests.golden.adapters import base_model, train, version
from tests.golden.test_architectures import prompts
from tests.golden.test_invariance import _library
from tests.golden.tiny import VOCABULARY, Answer, Loaded, answer, request, save_int8, save_tiny
from tests.kernels import TORCH, use

NEW_TOKENS = 8
NAME = "adapter"
EVERY: dict[str, dict[str, Any]] = {
    "llama": {"r": 5, "use_rslora": True},
    "llama-rope3": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 3}},
    "qwen3": {"target_modules": ["q_proj", "v_proj", "lm_head"]},
    "gemma2": {},
    "phi3": {},
    "gpt_neox": {"r": 3},
    "gpt2": {"fan_in_fan_out": True, "r": 7},
    "falcon-alibi": {},
}
"""Architectures of all three forwards: ours, the library's packed, the library's sequence by sequence."""


@pytest.fixture(scope="module", params=usual(EVERY, "llama", "phi3", "gpt2", "falcon-alibi"))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """(architecture, base, PEFT's adapter)"""
    base = save_tiny(request.param, tmp_path_factory.mktemp("base"))
    return request.param, base, train(base, tmp_path_factory.mktemp("peft"), 7, **EVERY[request.param])


def tokens(loaded: Loaded, adapter: str) -> list[tuple[int, ...]]:
    """Greedy, all prompts at once."""
    asked = [request(str(i), prompt, SamplingParams(max_tokens=NEW_TOKENS)) for i, prompt in enumerate(prompts())]
    found = answer(loaded.core(57), {0: [replace(each, adapter=adapter) for each in asked]})
    return [found[each.id].token_ids for each in asked]


def peft_tokens(model: Any) -> list[tuple[int, ...]]:
    found = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
        found.append(tuple(out[0, len(prompt) :].tolist()))
    return found


@pytest.mark.parametrize("kernels", usual(["native", TORCH], "native"))
def test_tokens_equal_peft(
    trained: tuple[str, Path, Path], tmp_path: Path, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, base, adapter = trained
    if kernels == TORCH:
        use(TORCH, monkeypatch)
    expected = peft_tokens(peft.PeftModel.from_pretrained(base_model(base), adapter))
    assert expected != peft_tokens(base_model(base)), "the adapter changes nothing that this test sees"
    made = version(base, adapter, tmp_path / "version", "F32")
    loaded = Loaded.of(made, "fp32", block_size=8, adapters=((NAME, str(made)),))
    assert tokens(loaded, NAME) == expected
    assert tokens(loaded, "") == peft_tokens(base_model(base)), "the base in the same engine"
    loaded.runner.unload_adapter(NAME)
    assert tokens(loaded, "") == peft_tokens(base_model(base))


RANKS = (3, 8, 17)
MODELS = [
    ("llama", "fp32", "native"),
    ("llama", "bf16", "native"),
    ("llama", "bf16", "two threads"),
    ("llama", "bf16", "portable"),
    ("llama", "int8", "native"),
    ("gemma2", "bf16", "native"),
    ("gpt_neox", "bf16", "native"),
    ("gpt2", "bf16", "native"),
    ("llama", "bf16", TORCH),
    ("llama", "int8", TORCH),
    ("gpt2", "fp32", TORCH),
]
FEW_MODELS = [("llama", "bf16", "two threads"), ("gemma2", "bf16", "native"), ("llama", "int8", TORCH)]


@pytest.mark.parametrize(("name", "precision", "kernels"), usual(MODELS, *FEW_MODELS))
def test_alone_or_in_a_crowd_of_adapters(
    name: str, precision: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base and three adapters in one batch, in chunks, from cached prefixes and behind drafts: what each says alone."""
    if kernels in (TORCH, "portable"):
        use(kernels, monkeypatch)
    base = save_tiny(name, tmp_path / "base")
    made = [version(base, train(base, tmp_path / f"peft{r}", r, r=r), tmp_path / f"{r}") for r in RANKS]
    served = save_int8(base, tmp_path / "int8") if precision == "int8" else base
    known = tuple((directory.name, str(directory)) for directory in made)
    threads = 2 if kernels == "two threads" else 1
    loaded = Loaded.of(served, precision, block_size=8, adapters=known, threads=threads)
    plain = Loaded.of(served, precision, block_size=8, threads=threads)
    owners = ("", *(name for name, _ in known))
    requests = [
        replace(each, id=f"{each.id} {owner}", adapter=owner)
        for number, each in enumerate(_library(random.Random(5), VOCABULARY, 6))
        for owner in (owners if number < 3 else owners[number % 4 :][:1])
    ]
    alone: dict[str, Answer] = {}
    for one in requests:
        alone.update(answer((loaded if one.adapter else plain).core(caching=False), {0: [one]}))
    rng, cached, accepted = random.Random(3), 0, 0
    for _ in range(drawn(2, 3) if kernels == TORCH else drawn(3, 6)):  # torch operations take four times as long
        order = rng.sample(requests, len(requests))
        arrivals = {rng.choice((0, 1, 4)): order[:7], 6: order[7:]}
        core = loaded.core(rng.choice((24, 50, 512)), True, None, rng.random() < 0.7)
        found = answer(core, arrivals)
        for one in requests:
            assert found[one.id].token_ids == alone[one.id].token_ids
            assert found[one.id].logprobs == alone[one.id].logprobs
        cached += core.stats.prefix_hit_tokens_total
        accepted += core.stats.accepted_tokens_total
    assert cached > 0
    assert accepted > 0


def test_bf16_logits_are_peft_s_within_rounding(tmp_path: Path) -> None:
    base = save_tiny("llama", tmp_path / "base")
    adapter = train(base, tmp_path / "peft", 2)
    made = version(base, adapter, tmp_path / "version")
    loaded = Loaded.of(made, "bf16", block_size=8, adapters=((NAME, str(made)),))
    prompt = prompts()[-1]
    asked = Request("a", prompt, SamplingParams(max_tokens=1, prompt_logprobs=0), adapter=NAME)
    found = answer(loaded.core(), {0: [asked]})["a"].prompt_logprobs
    with torch.no_grad():
        model = peft.PeftModel.from_pretrained(base_model(base, torch.bfloat16), adapter)
        logits = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        without = base_model(base, torch.bfloat16)(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    targets = torch.tensor(prompt[1:])[:, None]
    mine = torch.tensor([each.logprob for each in found])
    error = (mine - logits[:-1].gather(1, targets)[:, 0]).abs().mean()
    change = (without - logits)[:-1].gather(1, targets)[:, 0].abs().mean()
    assert error < 0.05 < 10 * error < change


def test_an_adapter_that_is_not_there_is_an_error_and_one_in_use_is_not_freed(tmp_path: Path) -> None:
    base = save_tiny("llama", tmp_path / "base")
    made = version(base, train(base, tmp_path / "peft", 1), tmp_path / "version")
    loaded = Loaded.of(base, "bf16", block_size=8)
    core = loaded.core()
    params = SamplingParams(max_tokens=9)
    core.add(Request("early", prompts()[2], params, adapter=NAME))
    (output,) = core.step()
    assert (output.finish_reason, output.token_ids) == (FinishReason.ERROR, ())
    core.load_adapter(NAME, str(made))
    alone = tokens(loaded, NAME)
    core.add(Request("a", prompts()[2], params, adapter=NAME))
    core.step()
    core.unload_adapter(NAME)
    core.add(Request("late", prompts()[2], params, adapter=NAME))
    outputs = [output for _ in range(12) for output in core.step()]
    assert [output.finish_reason for output in outputs if output.request_id == "late"] == [FinishReason.ERROR]
    assert sum(len(output.token_ids) for output in outputs if output.request_id == "a") == 8
    assert not core._runner.adapters
    core.load_adapter(NAME, str(made))
    assert tokens(loaded, NAME) == alone
    with pytest.raises(CannotServe, match="no linear layer"):
        other = save_tiny("gpt2", tmp_path / "gpt2")
        core.load_adapter("other", str(version(other, train(other, tmp_path / "peft2", 1), tmp_path / "version2")))


def test_a_layer_that_is_given_other_rows_is_not_adapted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As experts of a mixture would be, one by one. Found when the adapter is loaded, not in a step."""
    use(TORCH, monkeypatch)
    base = save_tiny("gpt2", tmp_path / "base")
    made = version(base, train(base, tmp_path / "peft", 1), tmp_path / "version")
    loaded = Loaded.of(base, "bf16", block_size=8)
    before = tokens(loaded, "")
    layer = loaded.runner.forward.model.get_submodule("transformer.h.0.mlp")
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x: torch.cat([forward(row) for row in x.split(1, dim=1)], dim=1))
    with pytest.raises(CannotServe, match="other rows"):
        loaded.runner.load_adapter(NAME, str(made))
    assert not loaded.runner.adapters
    monkeypatch.undo()
    use(TORCH, monkeypatch)
    assert tokens(loaded, "") == before
