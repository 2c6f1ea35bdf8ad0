"""A checkpoint whose tensors are not those of its configuration is refused by name: at import, when it is quantized,
and when a version of an earlier release is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights.loading import load_model
from models.weights.quantize import quantize
from service.engine.runner.block_linear import coded_linear
from tests.checkpoints import save_gpt2, save_llama, save_t5, save_tokenizer
from tests.unit.test_importing import edit_json

Tensors = dict[str, Tensor]
UP = "model.layers.0.mlp.up_proj.weight"
SIZES: dict[str, Any] = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}


def edited(directory: Path, change: Callable[[Tensors], object]) -> Path:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def refused(tmp_path: Path, source: Path, named: str, precision: str | None = None) -> None:
    repository = Repository(tmp_path / "data")
    with pytest.raises(InvalidSource, match=named):
        import_source(repository, str(source), "demo", precision=precision)
    assert repository.models() == []


def without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def as_codes(dtype: torch.dtype, *names: str) -> Callable[[Tensors], object]:
    """The weights times 100, in whole numbers; all of them without a name."""
    return lambda tensors: tensors.update(
        {name: (tensors[name].float() * 100).to(dtype) for name in names or list(tensors)}
    )


def with_number(name: str, number: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[name].view(-1)[5:6].fill_(number)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without(UP), f"lack {UP}"),
        (without("model.norm.weight"), "lack model.norm.weight"),
        (without("lm_head.weight"), "lack lm_head.weight"),
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.0" in name], r"and 6 more"),
        (lambda tensors: tensors.update({UP: torch.zeros(3, 32)}), r"up_proj.weight has the shape \[3, 32\]"),
        (lambda tensors: tensors.update({UP.replace("0", "7"): torch.zeros(48, 32)}), "layers.7.mlp.up_proj"),
        (lambda tensors: tensors.update({"v_head.weight": torch.zeros(1, 32)}), "v_head.weight"),
        (with_number(UP, float("nan")), f"{UP} has values that are not finite"),
        (with_number("model.norm.weight", float("inf")), "model.norm.weight has values that are not finite"),
        (as_codes(torch.int8, UP), f"{UP} holds whole numbers, I8, where the model has weights"),
        (as_codes(torch.int64, "model.norm.weight"), "model.norm.weight holds whole numbers, I64"),
        (as_codes(torch.int32), "holds whole numbers, I32"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, change: Callable[[Tensors], object], named: str) -> None:
    refused(tmp_path, edited(save_llama(tmp_path / "llama", tied=False), change), named)


def test_whole_numbers_of_an_expert_are_no_weights(tmp_path: Path) -> None:
    """Files name experts in another way than the library's model."""
    MixtralForCausalLM(MixtralConfig(**SIZES, **HEADS, num_local_experts=2)).bfloat16().save_pretrained(
        tmp_path / "moe"
    )
    save_tokenizer(tmp_path / "moe")
    name = "model.layers.0.block_sparse_moe.experts.1.w2.weight"
    refused(tmp_path, edited(tmp_path / "moe", as_codes(torch.int8, name)), f"{name} holds whole numbers")


def test_a_table_of_whole_numbers_that_no_model_reads_is_no_reason(tmp_path: Path) -> None:
    mask = {"h.0.attn.bias": torch.ones(1, 1, 128, 128, dtype=torch.uint8)}
    source = edited(save_gpt2(tmp_path / "gpt2"), lambda tensors: tensors.update(mask))
    assert import_source(Repository(tmp_path / "data"), str(source), "demo").precision == "bf16"


def test_a_tensor_that_older_releases_wrote_is_no_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    source = edited(save_llama(tmp_path / "llama"), lambda tensors: tensors.update(frequencies))
    capfd.readouterr()
    assert import_source(Repository(tmp_path / "data"), str(source), "demo").precision == "bf16"
    assert "Loading weights" not in capfd.readouterr().err, "a bar of the library's beside the import's own progress"


@pytest.mark.parametrize(
    ("save", "name"),
    [(save_gpt2, "transformer.ln_f.bias"), (save_t5, "decoder.final_layer_norm.weight")],
)
def test_other_architectures(tmp_path: Path, save: Callable[[Path], Path], name: str) -> None:
    refused(tmp_path, edited(save(tmp_path / "other"), without(name)), f"lack {name}")


def test_a_bias_and_an_expert(tmp_path: Path) -> None:
    qwen = Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS))
    mixture = MixtralForCausalLM(MixtralConfig(**SIZES, **HEADS, num_local_experts=4))
    bias, expert = "model.layers.0.self_attn.q_proj.bias", "model.layers.0.block_sparse_moe.experts.3.w2.weight"
    for model, name, named in ((qwen, bias, f"lack {bias}"), (mixture, expert, "experts.down_proj|do not fit")):
        directory = tmp_path / name
        model.bfloat16().save_pretrained(directory)
        save_tokenizer(directory)
        refused(tmp_path, edited(directory, without(name)), named, "int8")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 300}, "embed_tokens.weight has the shape"),
        ({"num_hidden_layers": 2}, "lack model.layers.1"),
        ({"tie_word_embeddings": False}, "lack lm_head.weight"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": -5.0}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "factor"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
    ],
)
def test_a_configuration_that_is_not_the_weights_or_computes_nothing(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    source = save_llama(tmp_path / "llama")
    edit_json(source / "config.json", **change)
    if "rope_theta" in change or "rope_scaling" in change:
        config = json.loads((source / "config.json").read_text())
        config.pop("rope_parameters", None)
        (source / "config.json").write_text(json.dumps(config))
    refused(tmp_path, source, named)


def test_a_version_of_an_earlier_release_says_what_it_lacks(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    whole = import_source(repository, str(save_llama(tmp_path / "llama")), "demo")
    with repository.stage() as staged:
        for file in whole.files:
            (staged / file.path).write_bytes((repository.path(whole) / file.path).read_bytes())
        edited(staged, without(UP))
        manifest = repository.publish(staged, whole.facts, "demo")
    directory = repository.path(manifest)
    with pytest.raises(ValueError, match=f"lack {UP}"):
        load_model(directory, "bf16", torch.bfloat16, torch.device("cpu"), coded_linear)
    with pytest.raises(InvalidSource, match=f"lack {UP}"):
        quantize(repository, manifest, "int8")
