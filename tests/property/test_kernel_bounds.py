"""The kernels refuse a step that names token ids, positions, blocks, rows or adapters that do not exist."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.weights.loading import LowRankWeights, Outliers
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.runner.forwards.attention import AttentionPlan, AttentionSpec, DistanceBias, SequenceRows
from service.engine.runner.forwards.blueprint import ExpertsOutline, Norm
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.forwards.step import Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.library import Library
from service.engine.runner.native.linear import NativeLinear
from service.engine.runner.pooling import FinalStates
from tests.kernels import LIBRARIES, use
from tests.random_models import Sizes, random_linear
from tests.random_steps import CPU, RandomEngine

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="no native kernels are built")

SIZES = Sizes(
    layers=1,
    hidden=16,
    intermediate=8,
    vocabulary=50,
    max_model_len=40,
    kv_heads=1,
    heads=2,
    head_dim=8,
    rotary=8,
    block_size=4,
    blocks=20,
)
FAR = st.sampled_from([1, 2, 1 << 20, (1 << 31) - 1, 1 << 40])


@cache
def engine(level: str) -> RandomEngine:
    """One small model on these kernels, with one adapter."""
    with pytest.MonkeyPatch.context() as patch:
        use(level, patch)
        return RandomEngine(random.Random(4), "bf16", torch.float32, SIZES, adapters=1)


def step_of(level: str) -> Step:
    """Two sequences over four and one blocks, the second with an adapter."""
    one = engine(level)
    sequences = (SequenceRows(0, 7, 6, [3, 0, 19, 7]), SequenceRows(7, 2, 0, [5]))
    step = one.packed(sequences, ["", *one.adapters], [0, 6, 8])
    return replace(step, final=FinalStates(torch.tensor([1, 8]), (1, 1)))


@pytest.fixture(params=LIBRARIES)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use(request.param, monkeypatch)
    return str(request.param)


LIMITS: dict[str, tuple[Callable[[Step], Tensor], int, str]] = {
    "token id": (lambda step: step.token_ids, SIZES.vocabulary, "vocabulary"),
    "position": (lambda step: step.positions, SIZES.max_model_len, "position"),
    "block": (lambda step: step.plan.tables, SIZES.blocks + 1, "block"),
    "logit row": (lambda step: step.logit_rows, 9, "logit"),
    "state row": (lambda step: step.final.rows if step.final else step.logit_rows, 9, "states"),
}
"""Where a step holds numbers, which are from 0 on, how many there are, and a word of the refusal."""

any_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.mark.parametrize("what", LIMITS)
@any_example
@given(data=st.data())
def test_numbers_of_a_step_end_where_what_they_name_ends(level: str, what: str, data: st.DataObject) -> None:
    where, limit, said = LIMITS[what]
    step, decoder = step_of(level), engine(level).decoder
    tensor = where(step)
    place = data.draw(st.integers(0, len(tensor) - 1))
    tensor[place] = data.draw(st.sampled_from([0, limit - 1]))
    decoder(step)
    tensor[place] = data.draw(st.one_of(FAR.map(lambda far: limit - 1 + far), FAR.map(lambda far: -far)))
    with pytest.raises(ValueError, match=said):
        decoder(step)


@any_example
@given(far=FAR, place=st.integers(0, 3))
def test_window_blocks_end_where_the_cache_ends(level: str, far: int, place: int) -> None:
    seeds = (RandomEngine(random.Random(seed), "bf16", torch.float32, SIZES, 0) for seed in range(100))
    one = next(each for each in seeds if each.cache.num_window_blocks)
    sequence = SequenceRows(0, 7, 6, [3, 0, 19, 7], [1, 2, 5, 4])
    step = one.packed((sequence,), [""], [0])
    one.decoder(step)
    step.plan.windowed.tables[place] = one.cache.num_window_blocks
    one.decoder(step)
    for wrong in (one.cache.num_window_blocks + far, -far):
        step.plan.windowed.tables[place] = wrong
        with pytest.raises(ValueError, match="block"):
            one.decoder(step)


@any_example
@given(data=st.data())
def test_a_sequence_stays_in_its_rows_and_blocks(level: str, data: st.DataObject) -> None:
    """Row, count, start and table of a sequence, each moved past its border; in the step and in attention alone."""
    step, one = step_of(level), engine(level)
    field, place = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 1))
    most = ((2, 7), (9, 2), (13, 2), (1, 4))[field][place]
    step.plan.sequence_rows[place, field] = most
    one.decoder(step)
    query = torch.zeros(9, SIZES.heads, SIZES.head_dim)
    step.plan.look(0, query, AttentionSpec(1.0))
    step.plan.sequence_rows[place, field] = data.draw(
        st.one_of(FAR.map(lambda far: most + far), FAR.map(lambda far: -far))
    )
    with pytest.raises(ValueError, match=r"rows|position|block"):
        one.decoder(step)
    with pytest.raises(ValueError, match=r"rows|position|block"):
        step.plan.look(0, query, AttentionSpec(1.0))


def test_a_table_too_short_for_its_sequence_is_refused(level: str) -> None:
    """Otherwise the sequence would read the next one's blocks."""
    step = engine(level).packed((SequenceRows(0, 7, 6, [3, 0, 19]), SequenceRows(7, 2, 0, [5])), ["", ""], [0])
    with pytest.raises(ValueError, match="block table"):
        engine(level).decoder(step)


def test_attention_with_a_bias_ends_where_the_bias_ends(level: str) -> None:
    cache = KVCache([LayerShape(2, 4, 4)], 6, 4, torch.float32, CPU)
    spec = AttentionSpec(1.0, bias=DistanceBias(torch.zeros(2, 12)))
    query = torch.zeros(3, 2, 4)
    AttentionPlan(cache, [SequenceRows(0, 3, 9, [0, 1, 2])], 3, 1, CPU).look(0, query, spec)
    with pytest.raises(ValueError, match="position"):
        AttentionPlan(cache, [SequenceRows(0, 3, 10, [0, 1, 2, 3])], 3, 1, CPU).look(0, query, spec)


def test_attention_has_a_query_for_each_of_its_rows(level: str) -> None:
    cache = KVCache([LayerShape(2, 8, 8)], 4, 4, torch.float32, CPU)
    plan = AttentionPlan(cache, [SequenceRows(0, 9, 0, [0, 1, 2])], 9, 1, CPU)
    plan.look(0, torch.zeros(9, 4, 8), AttentionSpec(1.0))
    for shape in ((8, 4, 8), (9, 4, 7), (9, 4, 9), (9, 1, 8), (9, 3, 8)):
        with pytest.raises(ValueError, match=r"query|rows|heads"):
            plan.look(0, torch.zeros(shape), AttentionSpec(1.0))


@pytest.mark.parametrize("owner", [-2, 1, 1 << 40])
def test_a_row_has_one_of_the_steps_adapters(level: str, owner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, step = engine(level).decoder, step_of(level)
    made = decoder._adapters_struct

    def spoilt(of: Step, owners: Tensor) -> object:
        struct = made(of, owners)
        owners[-1] = owner
        return struct

    monkeypatch.setattr(decoder, "_adapters_struct", spoilt)
    with pytest.raises(ValueError, match="adapter"):
        decoder(step)


def test_an_adapter_fits_its_layers(level: str) -> None:
    decoder = engine(level).decoder
    for depth, outputs in ((15, 16), (17, 16), (16, 33)):
        weights = LowRankWeights(torch.zeros(2, depth), torch.zeros(2, outputs), 1.0)
        with pytest.raises(CannotServe, match=r"0\.q"):
            decoder.load_adapter("wrong", {"0.q": weights})


@pytest.mark.parametrize("column", [-1, 16, 1 << 30])
def test_outliers_are_columns_of_their_layer(level: str, column: int) -> None:
    part = random_linear(random.Random(1), "llm-int8", 16, 5)
    part.outliers = Outliers(torch.tensor([column], dtype=torch.int32), torch.zeros(5, 1, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="outlier"):
        NativeLinear(LIBRARIES[level], (part,))


def test_rows_have_the_depth_of_their_layer(level: str) -> None:
    kernels: Library = LIBRARIES[level]
    layer = NativeLinear(kernels, (random_linear(random.Random(1), "fp32", 16, 5),))
    with pytest.raises(ValueError, match="16"):
        kernels.linear(layer.struct, torch.zeros(2, 15))


def test_a_decoder_whose_weights_do_not_fit_is_not_served(level: str) -> None:
    one = engine(level)
    whole = one.whole
    assert whole.embedding is not None
    for wrong in (
        replace(whole, tables=((whole.tables[0][0][:, :6], whole.tables[0][1]), *whole.tables[1:])),
        replace(whole, tables=(whole.tables[0], (whole.tables[1][0][:, :6], whole.tables[1][1][:, :6]))),
        replace(whole, embedding=whole.embedding[:, :15]),
        replace(whole, norm=Norm(whole.norm.weight[:3], whole.norm.bias)),
        replace(whole, norm=Norm(whole.norm.weight, torch.zeros(3))),
    ):
        with pytest.raises(CannotServe, match="fit"):
            type(one.decoder)(wrong, one.cache)


@pytest.mark.parametrize("changes", [{"parallel_residual": True}, {"gated": False}, {"gated": False, "experts": None}])
def test_parts_of_layers_that_no_kernel_computes_together(level: str, changes: dict[str, object]) -> None:
    """Experts beside a parallel residual or without gates; the activation of gpt-oss without gates."""
    one = engine(level)
    (layer,) = one.whole.outline.layers
    fields = {"experts": ExpertsOutline("router", 1, 1, True), "activation": "clamped_silu", **changes}
    layers = (msgspec.structs.replace(layer, experts=fields.pop("experts")),)
    outline = msgspec.structs.replace(one.whole.outline, layers=layers, **fields)
    with pytest.raises(CannotServe, match="no kernel for experts"):
        type(one.decoder)(replace(one.whole, outline=outline), one.cache)
