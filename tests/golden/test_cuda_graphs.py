"""Decode steps as graphs: the same logits as the decoder's own.

On a processor a graph is replayed by computing its step anew, from what lies in its inputs then. Only the recording
itself is left out."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.forwards.cuda_graphs import GraphedDecoder
from service.engine.runner.forwards.decoder import FusedDecoder, Layer
from tests.golden.conftest import Load
from tests.golden.tiny import DEVICE, VOCABULARY, Loaded, answer, save_int8, save_tiny
from tests.kernels import use


class Repeating(GraphedDecoder):
    """Records nothing where there is no GPU."""

    def _recorded(self, inputs: torch.Tensor, length: int) -> Any:
        if DEVICE != "cpu":
            return super()._recorded(inputs, length)
        graph = SimpleNamespace(inputs=inputs, logits=torch.empty(0))

        def replay() -> None:
            graph.logits = self._decoder(self._step(inputs, length))

        graph.graph = SimpleNamespace(replay=replay)
        return graph


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    name, precision = request.param
    use("torch", monkeypatch)
    directory = save_tiny(name, tmp_path / "model")
    if precision == "int8":
        directory = save_int8(directory, tmp_path / "int8")
    return Loaded.of(directory, precision, block_size=8, kv_cache_blocks=200)


@pytest.mark.parametrize(
    "loaded", [("llama", "fp32"), ("llama", "bf16"), ("qwen3", "int8"), ("gemma", "bf16")], indirect=True
)
def test_decode_steps_are_those_of_the_decoder(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = loaded.runner
    decoder = runner.forward.model
    assert isinstance(decoder, FusedDecoder)
    draw = random.Random(2)
    requests = [
        Request(
            str(number),
            tuple(draw.randrange(3, VOCABULARY) for _ in range(draw.choice((1, 7, 40, 120, 140)))),
            SamplingParams(max_tokens=draw.randint(2, 24), logprobs=2),
        )
        for number in range(11)
    ]
    arrivals = {number // 3: requests[number : number + 3] for number in range(0, len(requests), 3)}
    monkeypatch.setattr(runner, "forward", decoder)
    want = answer(loaded.core(64), arrivals)
    graphed = Repeating(decoder, runner.cache, runner._rules)
    monkeypatch.setattr(runner, "forward", graphed)
    assert answer(loaded.core(64), arrivals) == want
    # At most eight decode at once.
    assert len({rows for rows, _ in graphed._graphs}) > 1 or runner._rules.linear >= 8, "steps of several sizes"
    assert {length for _, length in graphed._graphs} >= {128, 256}


@pytest.mark.parametrize("loaded", [("llama", "bf16")], indirect=True)
def test_the_fused_decoder_holds_each_weight_once(loaded: Loaded) -> None:
    """The parts of a fused layer would take half as much memory again."""
    layers = [each for each in loaded.runner.forward.model.modules() if isinstance(each, Layer)]
    assert layers and not any(
        part for each in layers for part in (each.plan.qkv, each.plan.output, each.plan.gate_up, each.plan.down)
    )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_they_are_recorded(load: Load) -> None:
    served = Loaded.of(Path(load("llama", "fp32").config.model_dir), "bf16", block_size=8, device="cuda")
    assert "decode steps: CUDA graphs" in served.info.kernels
