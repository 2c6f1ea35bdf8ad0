"""The whole space of sampling parameters, with subnormal, huge and almost valid numbers: through the engine core, and
by the kernels against the torch operations."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.engine.process.validation import MAX_BIAS, check_params
from service.engine.protocol.messages import BOUNDS, NEUTRAL, FinishReason, SamplingParams
from service.engine.runner.sampling.native import NativeSampling
from service.engine.runner.sampling.reference import TorchSampling
from service.engine.runner.sampling.row import SamplerRow
from service.engine.runner.sampling.sampler import Sampler, verified
from service.engine.sequences.batch import Batch, SampledToken
from service.engine.sequences.sequence import TokenCounts
from tests.fakes import FakeRunner, make_core, make_request, run_all, tokens_of
from tests.kernels import LIBRARIES

VOCABULARY = 300
EDGES = [0.0, -0.0, 5e-324, 1e-45, 1e-40, 1e-38, 9.9e-6, 1e-5, 1.0, 3.4e38, 1e39, 1.7e308]
EDGES += [math.nextafter(edge, way) for edge in (0.0, 1e-5, 1e-4, 1.0, 1e4) for way in (-math.inf, math.inf)]
WILD = st.sampled_from(EDGES) | st.floats()
COUNTS = st.sampled_from([0, 1, 2, VOCABULARY - 1, VOCABULARY, VOCABULARY + 1, 2**31, 2**63 - 1])


def params(wild: bool) -> st.SearchStrategy[SamplingParams]:
    """Any at all if `wild`, else what the engine takes, up to its borders."""

    def number(low: float, high: float, off: float) -> st.SearchStrategy[float]:
        inside = st.just(off) | st.sampled_from([e for e in EDGES if low <= e <= high]) | st.floats(low, high)
        return inside | WILD if wild else inside

    ids = st.integers(-1, VOCABULARY) if wild else st.integers(0, VOCABULARY - 1)
    shaping = {
        name: number(*bounds, 0.7 if name == "temperature" else NEUTRAL[name]) for name, bounds in BOUNDS.items()
    }
    shaping["top_k"] = st.integers(-2 if wild else 0, 400) | COUNTS
    return st.builds(
        SamplingParams,
        max_tokens=st.integers(0, 4),
        min_tokens=st.integers(0, 4),
        **shaping,
        logit_bias=st.lists(st.tuples(ids, number(-MAX_BIAS, MAX_BIAS, 1.0)), max_size=3).map(tuple),
        seed=st.integers(-(2**63), 2**64 - 1),
        stop_token_ids=st.lists(st.integers(-1, VOCABULARY), max_size=3).map(tuple),
        logprobs=st.none() | st.integers(-1 if wild else 0, 5) | COUNTS,
    )


SCORES = st.sampled_from([0.0, 1e-45, -1e-38, 3.4e38, -3.4e38, -math.inf, math.inf, math.nan])


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """A row of logits: peaked, flat or full of ties, with a few extreme ones."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    row = torch.randn(VOCABULARY, generator=generator) * draw(st.sampled_from([0.0, 0.1, 3.0, 50.0]))
    row = row.round() if draw(st.booleans()) else row
    for at, score in draw(st.lists(st.tuples(st.integers(0, VOCABULARY - 1), SCORES), max_size=3)):
        row[at] = score
    return row


class SamplingRunner(FakeRunner):
    """Samples by the real sampler from one row of logits, whatever the sequences hold; those of "b" are its own."""

    vocab_size = VOCABULARY

    def __init__(self, row: Tensor) -> None:
        super().__init__()
        self._rows = {"a": row, "b": torch.linspace(0, 1, VOCABULARY)}
        self._sampler = Sampler()

    def run(self, batch: Batch) -> list[SampledToken | None]:
        items = [item for item in batch.scheduled if item.samples]
        rows = [row for item in items for row in SamplerRow.of(item)]
        table = torch.stack([self._rows[item.sequence.request.id] for item in items for _ in SamplerRow.of(item)])
        sampled = iter(self._sampler.sample(table, rows))
        return [verified(item, sampled) if item.samples else None for item in batch.scheduled]


@settings(max_examples=150, deadline=None)
@given(params=params(wild=True), row=tables(), prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5))
def test_no_parameters_end_more_than_their_own_request(params: SamplingParams, row: Tensor, prompt: list[int]) -> None:
    core = make_core(SamplingRunner(row))
    request = make_request("a", prompt)
    core.add(type(request)("a", tuple(prompt), params))
    core.add(make_request("b", max_tokens=3))
    outputs = run_all(core)
    assert outputs["a"][-1].finish_reason in {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}
    assert all(0 <= token < VOCABULARY for token in tokens_of(outputs["a"]))
    assert tokens_of(outputs["b"]) == [VOCABULARY - 1] * 3


@settings(max_examples=150, deadline=None)
@given(
    params=params(wild=False),
    row=tables(),
    position=st.integers(0, 5),
    known=st.lists(st.integers(0, VOCABULARY - 1), max_size=9),
)
def test_the_kernels_repeat_the_torch_operations(
    params: SamplingParams, row: Tensor, position: int, known: list[int]
) -> None:
    check_params(params)
    counts = TokenCounts(0, len(known) // 2)
    counts.follow(known)
    rows = [SamplerRow(params, position, counts)]
    (want,) = Sampler(TorchSampling()).sample(row[None], rows)
    for level, kernels in LIBRARIES.items():
        (found,) = Sampler(NativeSampling(kernels)).sample(row[None], rows)
        assert repr(found) == repr(want), (level, params, row[row.topk(5).indices], known)
