"""Linear layers: 8-bit products are exact sums, of fast kernels, and rows never depend on their neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.weights.int4 import decoded, encode
from models.weights.int8 import row_scale
from service.engine.runner import linear
from service.engine.runner.forwards.decoder import fuse
from service.engine.runner.linear import DenseLinear, Int8Linear, activation_reach, quantize_rows
from service.engine.runner.native.library import library
from service.engine.runner.native.linear import NativeLinear
from tests.kernels import KERNELS, use

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")  # type: ignore[no-untyped-call]
needs_onednn = pytest.mark.skipif(not ONEDNN, reason="this torch has no oneDNN quantized linear")


@pytest.fixture(autouse=True, params=KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs on each instruction set that this processor has, and on torch operations."""
    use(request.param, monkeypatch)
    return str(request.param)


def layer(out: int = 48, depth: int = 96, bias: bool = False, seed: int = 0) -> Int8Linear:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-127, 128, (out, depth), dtype=torch.int8, generator=generator)
    scale = torch.rand(out, generator=generator) * 0.01 + 0.001
    return Int8Linear(weight, scale, torch.randn(out, generator=generator) if bias else None)


def rows(count: int, depth: int = 96) -> Tensor:
    return torch.randn(count, depth, generator=torch.Generator().manual_seed(count))


@needs_onednn
def test_activations_are_unsigned() -> None:
    """Signed ones reach a reference kernel, thousands of times slower. No timing here: the type is what decides."""
    codes, _ = quantize_rows(rows(5), activation_reach())
    assert codes.dtype is linear.ACTIVATION_DTYPE is torch.uint8


@pytest.mark.parametrize("reach", [63, 127])
def test_codes_are_the_nearest_of_the_row(reach: int) -> None:
    x = rows(7) * torch.logspace(-3, 3, 7)[:, None]
    codes, scale = quantize_rows(x, reach)
    assert torch.equal(scale, x.abs().amax(1, keepdim=True) * (1.0 / reach))
    assert int(codes.min()) >= 1 and int(codes.max()) <= 2 * reach + 1
    error = ((codes.double() - (reach + 1)) * scale - x).abs() / scale
    assert float(error.max()) <= 0.5 + 1e-4


@needs_onednn
def test_the_sum_is_exact() -> None:
    """Against 64-bit integers, with the largest codes and weights that can meet: no saturation, no rounding."""
    reach = activation_reach()
    weight = torch.randint(-127, 128, (40, 512), dtype=torch.int8)
    weight[:8] = 127
    weight[8:16] = -127
    codes = torch.randint(1, 2 * reach + 2, (9, 512), dtype=torch.uint8)
    codes[0] = 2 * reach + 1
    codes[1] = 1
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    out = linear.multiply(codes, reach + 1, packed, torch.ones(40), torch.zeros(40, dtype=torch.int32))
    assert torch.equal(out.long(), (codes.long() - (reach + 1)) @ weight.long().T)


@pytest.mark.parametrize("bias", [False, True])
def test_close_to_the_dense_product(bias: bool) -> None:
    one = layer(bias=bias)
    x = rows(11)
    dense = F.linear(x, decoded(one.weight).float() * one.scale[:, None], one.bias)
    assert float((one(x) - dense).square().mean().sqrt() / dense.std()) < 0.02


def test_no_rows_and_rows_that_are_no_numbers() -> None:
    one, x = layer(), rows(4)
    assert one(x[:0]).shape == (0, 48)
    spoilt = x.clone()
    spoilt[2] = float("nan")
    out = one(spoilt)
    assert bool(out[2].isnan().all())
    assert torch.equal(out[[0, 1, 3]], one(x)[[0, 1, 3]])
    assert not one(torch.zeros(2, 96)).any()


def test_the_portable_way_gives_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(6)
    fast = layer()(x)
    monkeypatch.setattr(linear, "int8_kernel", lambda device: "dequantized")
    slow = layer()(x)
    assert float((fast - slow).square().mean().sqrt() / slow.std()) < 0.03


def test_released_weights_come_back() -> None:
    one, x = layer(), rows(3)
    before = one(x)
    one.release()
    assert one.native is None
    assert torch.equal(one(x), before)


def test_fused_layers_take_over_what_their_parts_have_packed() -> None:
    kernels = library()
    if kernels is None:
        pytest.skip("torch operations pack again")
    x, panel = rows(5), kernels.panel
    for sizes in ((2 * panel, panel, 7), (2 * panel, 7, panel), (48,)):
        parts = [layer(out, seed=out) for out in sizes]
        want = torch.cat([part(x) for part in parts], dim=1)
        assert torch.equal(NativeLinear(kernels, parts)(x), want)
        assert all((part.native is None) == (sizes[1:2] != (7,)) for part in parts)


def test_parts_of_several_bits_are_packed_anew() -> None:
    """What 4-bit queries have packed is no beginning of a layer whose keys have 8 bits."""
    kernels = library()
    if kernels is None:
        pytest.skip("torch operations pack again")
    weight = torch.randn(2 * kernels.panel, 96, generator=torch.Generator().manual_seed(4))
    scale = row_scale(weight)
    parts = [Int8Linear(encode(weight, scale, 32), scale), layer(kernels.panel)]
    x = rows(5)
    want = torch.cat([part(x) for part in parts], dim=1)
    assert torch.equal(NativeLinear(kernels, parts)(x), want)


def test_fusing_changes_nothing() -> None:
    parts = [layer(seed=1), layer(out=16, seed=2, bias=True), layer(out=32, seed=3)]
    x = rows(5)
    assert torch.equal(fuse(parts)(x), torch.cat([part(x) for part in parts], dim=1))
    dense = [DenseLinear(rows(count)) for count in (4, 8)]
    torch.testing.assert_close(fuse(dense)(x), torch.cat([part(x) for part in dense], dim=1))
