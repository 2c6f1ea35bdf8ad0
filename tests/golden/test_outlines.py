"""Our two forwards compute the same for any outline, in fp32: norms, residuals, MLPs, sizes of no whole vectors."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from service.engine.runner.forwards.decoder import ACTIVATIONS, FusedDecoder
from service.engine.runner.forwards.native_decoder import NativeDecoder
from tests.effort import drawn
from tests.kernels import LIBRARIES, use
from tests.random_models import Sizes
from tests.random_steps import RandomEngine

STEPS = 3


def _engine(seed: str) -> RandomEngine:
    """A random model that both forwards compute: without experts."""
    for number in range(1000):
        rng = random.Random(f"{seed} {number}")
        sizes = replace(Sizes.random(rng), experts=0)
        engine = RandomEngine(rng, "fp32", torch.float32, sizes, adapters=0)
        if engine.whole.outline.activation in ACTIVATIONS:
            return engine
    raise AssertionError("unreachable")


@pytest.mark.parametrize("level", LIBRARIES)
@pytest.mark.parametrize("seed", range(drawn(24, 100)))
@torch.inference_mode()
def test_the_native_decoder_computes_what_torch_operations_do(
    level: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(level, monkeypatch)
    engine = _engine(str(seed))
    assert engine.whole.embedding is not None
    whole = replace(engine.whole, dtype=torch.float32, embedding=engine.whole.embedding.float())
    native, fused = NativeDecoder(whole, engine.cache), FusedDecoder(whole)
    for _ in range(STEPS):
        step = engine.step()
        if len(step.token_ids):
            torch.testing.assert_close(native(step), fused(step), rtol=2e-4, atol=2e-4)
