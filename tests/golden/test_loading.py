"""8-bit versions: built without memory, yet with every buffer that the library would have computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from models.weights.loading import load_model, weight_bytes
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.linear import Int8Linear
from service.engine.runner.loading.probe import observe
from tests.golden.conftest import Load
from tests.golden.tiny import CONFIGS, GROUPED, Loaded, answer, save_int8

CPU = torch.device("cpu")


def _int8(load: Load, name: str, directory: Path) -> transformers.PreTrainedModel:
    save_int8(Path(load(name, "fp32").config.model_dir), directory)
    return load_model(directory, "int8", torch.bfloat16, CPU, Int8Linear)


@pytest.mark.parametrize("name", CONFIGS)
def test_buffers_and_logits_are_those_of_the_original(load: Load, name: str, tmp_path: Path) -> None:
    model = _int8(load, name, tmp_path)
    original = load_model(load(name, "fp32").config.model_dir, "bf16", torch.bfloat16, CPU, Int8Linear)
    buffers = dict(model.named_buffers())
    for key, buffer in original.named_buffers():
        assert torch.equal(buffers[key], buffer), key
        assert buffers[key].dtype is buffer.dtype
    logits, want = observe(model, CPU).logits, observe(original, CPU).logits
    assert float((logits - want).square().mean().sqrt() / want.std()) < 0.1
    assert weight_bytes(model) < weight_bytes(original)


@pytest.mark.parametrize("name", ["llama-rope3", "gpt2"])
def test_versions_of_the_older_recipe_are_read(load: Load, name: str, tmp_path: Path) -> None:
    """Without a Hadamard transform, with a tied head beside the embedding; by the library's model and by its record."""
    source = Path(load(name, "fp32").config.model_dir)
    directory = save_int8(source, tmp_path / "older", block=1)
    model = load_model(directory, "int8", torch.bfloat16, CPU, Int8Linear)
    assert model.get_input_embeddings().weight.dtype is torch.bfloat16
    assert not any(getattr(layer, "hadamard", 1) > 1 for layer in model.modules())
    loaded = [Loaded.of(directory, "int8", record=str(tmp_path / "r.record")) for _ in range(2)]
    want = load(name, "int8").info.forward
    assert [each.info.forward for each in loaded] == [want, want]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["llama", "llama-rope3", "gpt2", "gemma3_text"])
def test_cuda_computes_the_same_8_bit_weights(load: Load, name: str, tmp_path: Path) -> None:
    """There the weights are turned back to bf16; and the engine serves them."""
    model = _int8(load, name, tmp_path)
    want = observe(model, CPU).logits
    moved = load_model(tmp_path, "int8", torch.bfloat16, torch.device("cuda"), Int8Linear)
    found = observe(moved, torch.device("cuda")).logits.cpu()
    assert float((found - want).square().mean().sqrt() / want.std()) < 0.1
    served = Loaded.of(tmp_path, "int8", device="cuda")
    params = SamplingParams(max_tokens=6)
    requests = [Request(str(i), tuple(range(3, 20 + 7 * i)), params) for i in range(4)]
    crowd = answer(served.core(), {0: requests})
    assert all(len(crowd[each.id].token_ids) == 6 for each in requests)


def test_files_that_do_not_fit_the_config(load: Load, tmp_path: Path) -> None:
    _int8(load, "llama", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.num_hidden_layers = 3
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"missing \['model\.layers\.2"):
        load_model(tmp_path, "int8", torch.bfloat16, CPU, Int8Linear)


def test_a_deep_8_bit_model_keeps_the_fused_forward(tmp_path: Path) -> None:
    """Rounding noise grows with depth and must not look like a wrong forward: the way back is ten times slower."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**GROUPED, "num_hidden_layers": 24})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "bf16")
    loaded = Loaded.of(save_int8(tmp_path / "bf16", tmp_path), "int8")
    assert loaded.info.forward == "decoder"
    assert not any("differ" in kernel for kernel in loaded.info.kernels)
