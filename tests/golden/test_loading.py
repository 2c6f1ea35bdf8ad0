"""Loads of versions: 8 bits without memory, and by a record without the library; the same model to the last bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from models.weights.loading import load_model, weight_bytes
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.linear import Int8Linear
from service.engine.runner.loading import building
from service.engine.runner.loading.findings import Findings
from service.engine.runner.loading.probe import observe
from service.engine.runner.native.library import library
from tests.effort import usual
from tests.golden.conftest import Load
from tests.golden.test_architectures import OF_EXPERTS, OURS
from tests.golden.tiny import CONFIGS, GROUPED, VOCABULARY, Answer, Loaded, answer, request, save_int8

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
    loaded = [Loaded.of(directory, "int8", findings=str(tmp_path / "r.record")) for _ in range(2)]
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


DENSE = [name for name in OURS if name not in OF_EXPERTS]  # see test_experts.py for the others
CASES = [
    *((name, "bf16") for name in OURS),
    *((name, "int8") for name in DENSE),
    ("llama", "fp32"),
    ("gpt_oss", "fp32"),
]
FEW = [("llama", "fp32"), ("gemma3_text", "int8"), ("phi3", "bf16"), ("qwen3_moe", "bf16"), ("gpt_oss", "fp32")]

needs_kernels = pytest.mark.skipif(library() is None, reason="records serve the native kernels, which are not built")


def _answer(loaded: Loaded) -> Answer:
    prompt = [(7 * i + 3) % VOCABULARY for i in range(60)]
    params = SamplingParams(max_tokens=12, logprobs=2, prompt_logprobs=1)
    return answer(loaded.core(), {0: [request("a", prompt, params)]})["a"]


def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> building.Built:
        raise AssertionError("loaded through the library")

    monkeypatch.setattr(building, "_from_library", refuse)


@needs_kernels
@pytest.mark.parametrize(("name", "precision"), usual(CASES, *FEW))
def test_the_same_model_by_its_record(
    load: Load, name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, record = Path(load(name, precision).config.model_dir), tmp_path / "engine" / "r.record"
    first = Loaded.of(directory, precision, findings=str(record))
    assert first.info.forward == "decoder"
    assert record.exists()
    _no_library(monkeypatch)
    again = Loaded.of(directory, precision, findings=str(record))
    assert _answer(again) == _answer(first)
    same = ("forward", "kernels", "memory_bytes", "blocks_total", "kv_bytes_per_block")
    assert all(getattr(again.info, field) == getattr(first.info, field) for field in same)


@needs_kernels
def test_a_second_load_imports_no_transformers(load: Load, tmp_path: Path) -> None:
    directory, record = load("llama", "int8").config.model_dir, str(tmp_path / "r.record")
    Loaded.of(Path(directory), "int8", findings=record)
    program = f"""
import sys
from service.engine.protocol.messages import EngineConfig
from service.engine.runner.loading.building import build_runner
fields = dict(max_model_len=400, max_num_seqs=16, threads=1, device="cpu", findings={record!r})
runner, info = build_runner(EngineConfig(model_dir={directory!r}, precision="int8", **fields), lambda *_: None)
print(info.forward, "transformers" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["decoder", "False"]


def _damage(record: Findings, how: str) -> bytes:
    outline = record.outline
    damaged = {
        "another host": lambda: msgspec.structs.replace(record, conditions=("elsewhere",)),
        "other norms": lambda: msgspec.structs.replace(
            record, outline=msgspec.structs.replace(outline, norm_offset=1.0)
        ),
        "a name without weights": lambda: msgspec.structs.replace(
            record, outline=msgspec.structs.replace(outline, norm="model.nrom.weight")
        ),
        "other logits": lambda: msgspec.structs.replace(record, logits=record.logits[::-1]),
        "other rows": lambda: msgspec.structs.replace(record, rows=record.rows[::-1]),
        "too few bounds": lambda: msgspec.structs.replace(record, bounds=record.bounds[1:]),
        "too few logits": lambda: msgspec.structs.replace(record, logits=record.logits[:-3]),
        "another vocabulary": lambda: msgspec.structs.replace(record, logits=record.logits[: len(record.logits) // 2]),
    }
    whole = msgspec.msgpack.encode(damaged[how]() if how in damaged else record)
    return whole[:-9] if how == "cut short" else whole


@needs_kernels
@pytest.mark.parametrize(
    "how",
    [
        "another host",
        "other norms",
        "a name without weights",
        "other logits",
        "other rows",
        "too few bounds",
        "too few logits",
        "another vocabulary",
        "cut short",
    ],
)
def test_a_record_that_does_not_fit_is_made_anew(load: Load, tmp_path: Path, how: str) -> None:
    """A load must not trust what it cannot prove, nor fail where it could have gone the long way."""
    directory, path = Path(load("llama", "bf16").config.model_dir), tmp_path / "r.record"
    first = Loaded.of(directory, "bf16", findings=str(path))
    good = path.read_bytes()
    path.write_bytes(_damage(msgspec.msgpack.decode(good, type=Findings), how))
    assert path.read_bytes() != good
    assert _answer(Loaded.of(directory, "bf16", findings=str(path))) == _answer(first)
    assert path.read_bytes() == good


@needs_kernels
def test_a_folder_that_cannot_be_written_to(load: Load, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loaded = Loaded.of(Path(load("llama", "int8").config.model_dir), "int8", findings=str(tmp_path / "file" / "r"))
    assert loaded.info.forward == "decoder"


@needs_kernels
def test_what_the_library_computes_has_no_record(load: Load, tmp_path: Path) -> None:
    Loaded.of(Path(load("gpt2", "bf16").config.model_dir), "bf16", findings=str(tmp_path / "r.record"))
    assert not list(tmp_path.iterdir())
