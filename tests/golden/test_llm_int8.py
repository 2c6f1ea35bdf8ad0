"""`llm-int8` beside bitsandbytes (`Linear8bitLt`) on the same layer, both against it in fp32: the query projection of a
model with outlier columns, and of one without, quantized as any version is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import transformers
from torch import Tensor

from loadtest.outliers import FACTOR, PLANTED, Layer, error, reach, theirs
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.int4 import decoded
from models.weights.int8 import quantize_rows as quantized
from models.weights.loading import MappedWeights
from models.weights.quantize import quantize
from service.engine.runner.linear import Int8Linear, quantize_rows
from tests.kernels import MAIN_KERNELS, use
from tests.versions import FACTS

LAYER = "model.layers.0.self_attn.q_proj"
DEPTH = 2048
TEXTS = [torch.randint(0, 256, (64,), generator=torch.Generator().manual_seed(at)).tolist() for at in range(3)]


@dataclass(frozen=True)
class Case:
    """The layer's own weight, fp32 [2048, 2048], what it reads on TEXTS, fp32 [n, 2048], and its two 8-bit forms."""

    repository: Repository
    weight: Tensor
    rows: Tensor
    outliers: tuple[int, ...]
    llm_int8: Manifest
    int8: Manifest

    def ours(self, manifest: Manifest) -> Int8Linear:
        stored = MappedWeights(self.repository.path(manifest), torch.bfloat16, manifest.precision).linear(LAYER)
        return Int8Linear(stored.weight, stored.scale, outliers=stored.outliers, hadamard=stored.hadamard)


@pytest.fixture(scope="module", params=[(), PLANTED], ids=["without outliers", "with outliers"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=DEPTH,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=2,
        dtype="bfloat16",
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.model.layers[0].input_layernorm.weight.data[list(request.param)] *= FACTOR
    rows: list[Tensor] = []
    layer = model.get_submodule(LAYER)
    layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].detach().reshape(-1, DEPTH)))
    with torch.inference_mode():
        for text in TEXTS:
            model(input_ids=torch.tensor([text]), use_cache=False)
    repository = Repository(tmp_path_factory.mktemp("layer"))
    with repository.stage() as staged:
        model.save_pretrained(staged)
        parent = repository.publish(staged, FACTS, "layer")
    return Case(
        repository,
        layer.weight.detach().float(),
        torch.cat(rows).clone(),
        request.param,
        quantize(repository, parent, "llm-int8", calibrate=lambda directory, window: TEXTS),
        quantize(repository, parent, "int8"),
    )


def test_the_same_columns_are_outliers(case: Case) -> None:
    """Ours by calibration, theirs in the rows of a call: on the same text they are the same."""
    other = theirs(case.weight)
    other(case.rows)
    found, kept = other.state.idx, case.ours(case.llm_int8).outliers
    assert found is not None and tuple(found.tolist()) == case.outliers
    assert (() if kept is None else tuple(kept.columns.tolist())) == case.outliers


@pytest.mark.parametrize("kernels", MAIN_KERNELS)
def test_no_less_exact(case: Case, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where activations have 8 bits as theirs. Where the processor leaves them 7, the step between codes is twice as
    large, and that alone is lost."""
    use(kernels, monkeypatch)
    layer = case.ours(case.llm_int8)
    mine, other = (error(form, case.weight, case.rows) for form in (layer, theirs(case.weight)))
    if reach() == 127:
        assert mine <= 1.1 * other
    weights, activations = (error(form, case.weight, case.rows) for form in _halves(case, layer))
    assert mine == pytest.approx(math.hypot(weights, activations * 127 / reach()), rel=0.1)


@pytest.mark.parametrize("kernels", MAIN_KERNELS)
def test_plain_8_bits_lose_several_times_as_much_to_outliers(
    case: Case, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the Hadamard transform of `int8`, which mixes outliers away."""
    use(kernels, monkeypatch)
    layers = (Int8Linear(*quantized(case.weight)), case.ours(case.llm_int8), case.ours(case.int8))
    plain, mine, mixed = (error(layer, case.weight, case.rows) for layer in layers)
    assert plain > 4 * mine if case.outliers else plain == mine
    assert mixed < plain / 2 if case.outliers else mixed < 1.1 * plain


def _halves(case: Case, layer: Int8Linear) -> tuple[Layer, Layer]:
    """The stored weights with rows as they are; the exact weights with rows in 8 bits, but for the outliers."""
    columns = torch.tensor(case.outliers, dtype=torch.int64)
    stored = decoded(layer.weight).float() * layer.scale[:, None]
    if layer.outliers is not None:
        stored[:, columns] = layer.outliers.weight.float()

    def in_8_bits(rows: Tensor) -> Tensor:
        codes, scale = quantize_rows(rows.float().index_fill(1, columns, 0), 127)
        coarse = (codes.float() - 128) * scale
        coarse[:, columns] = rows[:, columns].float()
        return coarse @ case.weight.T

    return lambda rows: rows.float() @ stored.T, in_8_bits
