"""These tests measure a machine as the doctor and the benchmark do, with every kernel that this one has."""

from __future__ import annotations

import pytest
import torch

from service.engine.runner.limits import DEPTH, OUTPUTS, rates, serving_ways, ways
from service.evaluation.host.measuring import BATCHES, PREFILL_ROWS, engine_times
from tests.kernels import KERNELS, LIBRARIES, TORCH, use

COUNTS = (*BATCHES, PREFILL_ROWS)
NUMBER = torch.full((4,), 0x3C, dtype=torch.uint8).view(torch.float32).item()


@pytest.fixture(scope="module")
def memory() -> torch.Tensor:
    return torch.full((4 * OUTPUTS * DEPTH,), 0x3C, dtype=torch.uint8)


@pytest.mark.parametrize("kernels", KERNELS)
def test_ways_multiply_by_all_weights(kernels: str, memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernels, monkeypatch)
    for way in ways(memory):
        if way.name.startswith(("float32", "bfloat16")):
            product = way.multiply(torch.ones(3, DEPTH), way.layers - 1)
            assert isinstance(product, torch.Tensor) and product.shape == (3, OUTPUTS)
            assert product.float().mean().item() == pytest.approx(NUMBER * DEPTH, rel=0.01), way.name
        assert way.operations(3) == 2 * 3 * OUTPUTS * DEPTH * way.layers
    native = LIBRARIES.get(kernels)
    assert len(ways(memory)) == (3 if native is None else 6 + native.has_int4)


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_precision_has_a_rate(kernels: str, memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernels, monkeypatch)
    found = {name: rates(way, COUNTS[:2], 0.001) for name, way in serving_ways(memory).items()}
    assert found.keys() == {"int8", "bf16", "fp32", "int8-weight", "int4"}
    assert all(rate > 0 for each in found.values() for rate in each.values())


@pytest.mark.parametrize("kernels", [KERNELS[0], TORCH])
def test_the_rest_of_a_step_is_measured(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernels, monkeypatch)
    times = engine_times(dict.fromkeys(COUNTS, 1e6))
    assert tuple(times.step) == BATCHES and tuple(times.value) == COUNTS
    assert all(seconds >= 0 for seconds in (times.layer, *times.step.values(), *times.value.values()))
