"""int8 versions: every linear weight within half a step behind its Hadamard transform, and all else untouched."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from models.checkpoint.safetensors_file import Tensor, read_header
from models.errors import Conflict, Corrupt, InvalidSource, NotFound
from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.conversion import split
from models.weights.hadamard import BLOCK, of_weights, transformed
from models.weights.int4 import Int4Weight
from models.weights.int8 import quantize_rows
from models.weights.quantize import quantize
from tests.checkpoints import save_gpt2, save_llama, save_t5
from tests.versions import publish

LLAMA_LINEARS = {
    **{f"model.layers.0.self_attn.{name}_proj": (32, 32) for name in "qo"},
    **{f"model.layers.0.self_attn.{name}_proj": (16, 32) for name in "kv"},
    "model.layers.0.mlp.gate_proj": (48, 32),
    "model.layers.0.mlp.up_proj": (48, 32),
    "model.layers.0.mlp.down_proj": (32, 48),
    "lm_head": (260, 32),
}
GPT2_LINEARS = {
    "transformer.h.0.attn.c_attn": (96, 32),
    "transformer.h.0.attn.c_proj": (32, 32),
    "transformer.h.0.mlp.c_fc": (128, 32),
    "transformer.h.0.mlp.c_proj": (32, 128),
    "lm_head": (260, 32),
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data")


def tensors(repository: Repository, manifest: Manifest) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(repository.path(manifest).glob("*.safetensors")):
        found |= load_file(path)
    return found


def check_int8(
    old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], linears: dict[str, tuple[int, int]], tied: str | None
) -> None:
    names = set(old) | {f"{linear}.{part}" for linear in linears for part in ("weight", "weight_scale", "hadamard")}
    assert set(new) == names - {tied}, "a tied head is held once"
    for name, shape in linears.items():
        weight, scale = new[f"{name}.weight"], new[f"{name}.weight_scale"]
        source = old.get(f"{name}.weight", old.get(tied or "")).float()  # type: ignore[union-attr]
        exact = source if name == "lm_head" or "transformer.h" not in name else source.T
        assert (weight.dtype, tuple(weight.shape)) == (torch.int8, shape)
        assert (scale.dtype, tuple(scale.shape)) == (torch.float32, shape[:1])
        assert weight.abs().amax(dim=1).eq(127).all(), "the whole range of a row is used"
        mixed, block = of_weights(exact, BLOCK), new[f"{name}.hadamard"]
        assert (block.dtype, block.tolist()) == (torch.int32, [BLOCK])
        assert ((weight.float() * scale[:, None] - mixed).abs() <= scale[:, None] / 2 * (1 + 1e-5)).all()
    for name in set(old) - {f"{linear}.weight" for linear in linears} - {tied}:
        assert new[name].dtype == torch.bfloat16
        assert torch.equal(new[name], old[name].to(torch.bfloat16))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_llama(repository: Repository, tmp_path: Path, tied: bool, precision: str) -> None:
    source = save_llama(tmp_path / "source", torch.float32, tied)
    parent = import_source(repository, str(source), "demo", precision=precision)
    small = quantize(repository, parent, author="kim")
    check_int8(
        tensors(repository, parent),
        tensors(repository, small),
        LLAMA_LINEARS,
        "model.embed_tokens.weight" if tied else None,
    )
    repository.verify(small)
    assert (small.precision, small.dtype, small.parameters) == ("int8", "BF16", parent.parameters)
    assert (small.lineage.parent, small.lineage.parent_digest) == (parent.reference, parent.digest)
    assert small.digest != parent.digest


def test_gpt2_is_stored_transposed(repository: Repository, tmp_path: Path) -> None:
    parent = import_source(repository, str(save_gpt2(tmp_path / "source")), "demo")
    small = quantize(repository, parent)
    check_int8(tensors(repository, parent), tensors(repository, small), GPT2_LINEARS, "transformer.wte.weight")


def test_older_names_become_canonical(repository: Repository, tmp_path: Path) -> None:
    """The hub's gpt2 says `h.0...` where the model says `transformer.h.0...`."""
    source = save_gpt2(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    save_file(bare, source / "model.safetensors", {"format": "pt"})
    small = quantize(repository, import_source(repository, str(source), "demo"))
    check_int8(weights, tensors(repository, small), GPT2_LINEARS, "transformer.wte.weight")


def test_the_model_still_says_the_same(repository: Repository, tmp_path: Path) -> None:
    """Logits with the dequantized weights stay close to the original's."""
    source = save_llama(tmp_path / "source", torch.float32)
    parent = import_source(repository, str(source), "demo", precision="fp32")
    stored = tensors(repository, quantize(repository, parent))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ids = torch.arange(20)[None]
    before = model(ids).logits
    exact = {
        name: transformed(tensor.float() * stored[f"{name}_scale"][:, None], BLOCK)
        if tensor.dtype == torch.int8
        else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith(("_scale", "hadamard"))
    }
    exact["model.embed_tokens.weight"] = exact["lm_head.weight"]
    model.load_state_dict(exact)
    assert torch.nn.functional.cosine_similarity(before, model(ids).logits, dim=-1).min() > 0.999


def test_sharded_parent_and_sharded_result(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = import_source(repository, str(save_llama(tmp_path / "source", shards="10KB")), "demo")
    assert sum(file.path.endswith(".safetensors") for file in parent.files) > 1
    one = quantize(repository, parent)
    assert "model.safetensors.index.json" not in {file.path for file in one.files}
    monkeypatch.setattr("models.weights.conversion.split", lambda planned: split(planned, single=100, size=10_000))
    many = quantize(repository, parent)
    directory = repository.path(many)
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    held = {tensor.name: path.name for path in directory.glob("*.safetensors") for tensor in read_header(path)}
    assert index == held
    assert len(set(held.values())) > 1
    assert all(held[f"{name}.weight"] == held[f"{name}.weight_scale"] for name in LLAMA_LINEARS)
    single = tensors(repository, one)
    assert all(torch.equal(tensor, single[name]) for name, tensor in tensors(repository, many).items())


def test_rows() -> None:
    weight = torch.tensor([[1.0, -127.0, 63.4], [0.0, 0.0, 0.0], [1e-42, 0.0, 0.0], [3e38, -3e38, 0.0]])
    values, scale = quantize_rows(weight)
    assert values.tolist() == [[1, -127, 63], [0, 0, 0], [0, 0, 0], [127, -127, 0]]
    assert scale.tolist()[:3] == [1.0, 1.0, 1.0]
    assert ((values.float() * scale[:, None] - weight).abs() <= scale[:, None] / 2).all()


def test_split_keeps_scales_with_weights() -> None:
    plan = [
        Tensor(name, "U8", (size,))
        for name, size in (("a.weight", 60), ("a.weight_scale", 30), ("a.group_base", 30), ("b", 60), ("c", 500))
    ]
    assert split(plan, single=1000) == [plan]
    assert [[tensor.name for tensor in shard] for shard in split(plan, single=1, size=100)] == [
        ["a.weight", "a.weight_scale", "a.group_base"],
        ["b"],
        ["c"],
    ]


def test_what_cannot_be_quantized(repository: Repository, tmp_path: Path) -> None:
    parent = import_source(repository, str(save_llama(tmp_path / "source")), "demo")
    small = quantize(repository, parent)
    with pytest.raises(Conflict, match="int8"):
        quantize(repository, small)
    with pytest.raises(Conflict):
        quantize(repository, parent, "bf16")
    with pytest.raises(InvalidSource):
        quantize(repository, parent, "int3")
    with pytest.raises(InvalidSource, match="needs a text"):
        quantize(repository, parent, "llm-int8")
    with pytest.raises(InvalidSource):
        quantize(repository, publish(repository, "no weights"))
    assert len(repository.versions("demo")) == 3


def test_weights_that_are_not_finite(repository: Repository, tmp_path: Path) -> None:
    """As an import of an earlier release published them."""
    sound = import_source(repository, str(save_llama(tmp_path / "source")), "demo")
    with repository.stage() as staged:
        for file in sound.files:
            shutil.copyfile(repository.path(sound) / file.path, staged / file.path)
        weights = load_file(staged / "model.safetensors")
        weights["model.layers.0.mlp.up_proj.weight"][3, 5] = float("nan")
        save_file(weights, staged / "model.safetensors", {"format": "pt"})
        parent = repository.publish(staged, sound.derived("an import", "kim"), "demo")
    with pytest.raises(InvalidSource, match="up_proj"):
        quantize(repository, parent)
    assert repository.versions("demo") == [sound, parent]


def test_a_damaged_parent_is_refused(repository: Repository, tmp_path: Path) -> None:
    parent = import_source(repository, str(save_llama(tmp_path / "source")), "demo")
    file = repository.path(parent) / "model.safetensors"
    file.chmod(0o644)
    content = file.read_bytes()
    file.write_bytes(content[:-4000] + bytes(100) + content[-3900:])
    with pytest.raises(Corrupt, match=r"model\.safetensors is not what was published"):
        quantize(repository, parent, "int8-weight")
    assert repository.versions("demo") == [parent]


def test_a_parent_stays_while_it_is_read(repository: Repository, tmp_path: Path) -> None:
    parent = import_source(repository, str(save_llama(tmp_path / "source")), "demo")

    def deleting(directory: Path, window: int) -> list[list[int]]:
        with pytest.raises(Conflict, match="in use"):
            repository.delete("demo", "1")
        return []

    assert quantize(repository, parent, "int8-weight", calibrate=deleting).lineage.parent == "demo:1"
    repository.delete("demo", "1")
    with pytest.raises(NotFound, match="demo:1"):
        quantize(repository, parent, "int8-weight")


def test_its_progress_names_the_layers(repository: Repository, tmp_path: Path) -> None:
    """A layer's rounding takes seconds in a large model."""
    parent = import_source(repository, str(save_llama(tmp_path / "source")), "demo")
    told: list[tuple[float, str]] = []
    quantize(repository, parent, progress=lambda share, phase: told.append((share, phase)))
    layers = [(share, phase) for share, phase in told if phase.startswith("rounding ")]
    assert {phase.removeprefix("rounding ") for _, phase in layers} == set(LLAMA_LINEARS)
    assert [share for share, _ in layers] == sorted(share for share, _ in layers) and 0.5 < layers[-1][0] < 1


def test_int4_stores_codes_and_reports_each_layer(repository: Repository, tmp_path: Path) -> None:
    """The head, and the layer whose 48 inputs are no whole groups, stay in 8 bits."""
    parent = import_source(repository, str(save_llama(tmp_path / "source", torch.float32)), "demo")
    small = quantize(repository, parent, "int4", calibrate=lambda directory, window: [list(range(20))])
    repository.verify(small)
    stored, old = tensors(repository, small), tensors(repository, parent)
    report = json.loads((repository.path(small) / "quantization.json").read_text())
    assert (report["method"], report["group_size"], report["calibration_tokens"]) == ("int4", 32, 20)
    fine = {"lm_head", "model.layers.0.mlp.down_proj"}
    assert {name for name, layer in report["layers"].items() if layer["bits"] == 8} == fine
    for name, (out, depth) in LLAMA_LINEARS.items():
        weight, scale = stored[f"{name}.weight"], stored[f"{name}.weight_scale"]
        if name in fine:
            assert weight.dtype is torch.int8
            continue
        assert (weight.dtype, tuple(weight.shape)) == (torch.uint8, (out, depth // 2))
        coded = Int4Weight(weight, stored[f"{name}.group_scale"], stored[f"{name}.group_base"])
        exact = old[f"{name}.weight"].float()
        found = transformed(coded.decoded() * scale[:, None], BLOCK)
        error = float((found - exact).square().sum() / exact.square().sum())
        assert 0 < report["layers"][name]["error"] < 0.01 and error < 0.03
    assert {(layer.pattern, layer.dtype) for layer in small.layers} >= {
        ("model.layers.0.self_attn.q_proj", "I4"),
        ("model.layers.0.mlp.down_proj", "I8"),
    }
    assert "6 linear weights to int4 in groups of 32, rounded by GPTQ in blocks of 128 on 20 tokens" in (
        small.lineage.recipe
    )
    assert "lm_head.hadamard" in stored and "inputs and weights by a Hadamard transform" in small.lineage.recipe
    assert "2 linear weights to int8" in small.lineage.recipe


def test_a_layer_that_would_lose_much_stays_in_8_bits(repository: Repository, tmp_path: Path) -> None:
    """The weights of an input that is hardly ever more than zero are a thousand times larger than the others."""
    source, layer = save_llama(tmp_path / "source", torch.float32), "model.layers.0.self_attn"
    weights = load_file(source / "model.safetensors")
    weights[f"{layer}.o_proj.weight"][:, 1] *= 1000
    weights[f"{layer}.v_proj.weight"][1] *= 1e-6
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    parent = import_source(repository, str(source), "demo")
    small = quantize(repository, parent, "int4", calibrate=lambda directory, window: [list(range(20))])
    report = json.loads((repository.path(small) / "quantization.json").read_text())
    assert report["layers"][f"{layer}.o_proj"]["bits"] == 8
    assert report["layers"][f"{layer}.q_proj"]["bits"] == 4


def test_group_sizes_that_cannot_be(repository: Repository, tmp_path: Path) -> None:
    parent = import_source(repository, str(save_llama(tmp_path / "source", torch.float32)), "demo")
    with pytest.raises(InvalidSource, match="no group size 64; choose one of 32, 128"):
        quantize(repository, parent, "int4", group_size=64)
    with pytest.raises(InvalidSource, match="int8 has no groups"):
        quantize(repository, parent, "int8", group_size=32)
    with pytest.raises(Conflict, match="groups of 128; choose another group_size"):
        quantize(repository, parent, "int4", group_size=128)
    assert [each.version for each in repository.versions("demo")] == [parent.version]


def test_int4_of_an_encoder_and_decoder_needs_no_text(repository: Repository, tmp_path: Path) -> None:
    parent = import_source(repository, str(save_t5(tmp_path / "source")), "demo")
    small = quantize(repository, parent, "int4", calibrate=lambda directory, window: [[1, 2, 3]])
    report = json.loads((repository.path(small) / "quantization.json").read_text())
    assert "all inputs alike" in small.lineage.recipe
    assert report["calibration_tokens"] == 0 and 4 in {layer["bits"] for layer in report["layers"].values()}
