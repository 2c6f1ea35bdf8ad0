"""Versions of the precision `file`: how a GGUF file's blocks are imported, what is refused, and how they serve."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

from models.checkpoint.block_types import TYPES
from models.errors import Conflict, Corrupt, InvalidSource
from models.imports import gguf_file
from models.imports.file_version import publish_file
from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.loading import MappedWeights
from models.weights.quantize import quantize
from service.engine.protocol.messages import SamplingParams
from service.engine.runner.native.library import library
from tests import gguf_files
from tests.block_weights import stored
from tests.checkpoints import save_tokenizer
from tests.golden.tiny import Loaded, answer, request
from tests.kernels import MAIN_KERNELS, use

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
CONFIGS: dict[str, Any] = {
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "untied": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "experts": Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=256, tie_word_embeddings=True
    ),
}


def written(directory: Path, name: str, kinds: tuple[str, ...] = TYPES, **changes: Any) -> Path:
    """Writes a GGUF file whose matrices have these types in turn; but the experts of a layer, which have one."""
    source, path, number = directory / f"{name}-source", directory / f"{name}.gguf", count()
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(CONFIGS[name])  # type: ignore[no-untyped-call]
    model.to(torch.bfloat16).save_pretrained(source)
    save_tokenizer(source)

    def form(tensor: torch.Tensor) -> gguf_files.Stored:
        at = next(number)
        return stored(tensor, "Q4_K" if tensor.dim() > 2 else kinds[at % len(kinds)], at)

    gguf_files.of_checkpoint(source, path, form, **changes)
    return path


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=CONFIGS)
def version(
    request: pytest.FixtureRequest, repository: Repository, tmp_path_factory: pytest.TempPathFactory
) -> Manifest:
    return import_source(repository, str(written(tmp_path_factory.mktemp("gguf"), request.param)), request.param)


def requests() -> list[Any]:
    params = SamplingParams(max_tokens=6, logprobs=2)
    return [
        request(str(i), [(7 * i * j + 3 * j + i) % 300 for j in range(length)], params)
        for i, length in enumerate((1, 9, 33, 70, 70, 150))
    ]


def test_blocks_are_stored_as_they_are(repository: Repository, version: Manifest) -> None:
    """They are the default, dequantize to the bf16 version's weights bit for bit, and take no more than the file."""
    parent = repository.get(version.name, "1")
    assert (version.precision, version.lineage.parent, parent.precision) == ("file", parent.reference, "bf16")
    ours, theirs = (MappedWeights(repository.path(each), torch.float32, each.precision) for each in (version, parent))
    for layer in range(3):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            module = f"model.layers.{layer}.self_attn.{name}"
            blocks, dense = ours.linear(module).weight, theirs.linear(module).weight
            assert blocks.type in TYPES and torch.equal(blocks.dequantized(torch.bfloat16).float(), dense)
    dtypes = {layer.dtype for layer in version.layers}
    assert {"Q4_K", "Q6_K", "BF16"} <= dtypes
    patterns = {layer.pattern for layer in version.layers}
    assert "lm_head" in patterns and ("model.embed_tokens" in patterns) == (version.name == "untied")
    assert version.size < 0.45 * parent.size


@pytest.mark.parametrize("kernels", MAIN_KERNELS)
def test_it_predicts_what_the_bf16_version_predicts(
    repository: Repository, version: Manifest, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kernels, monkeypatch)
    versions = version, repository.get(version.name, "1")
    loaded = [Loaded.of(repository.path(each), each.precision, block_size=8) for each in versions]
    ids = [(11 * j * j + 5) % 300 for j in range(90)]
    found, wanted = (
        answer(each.core(), {0: [request("a", ids, SamplingParams(max_tokens=1, prompt_logprobs=1))]})["a"]
        for each in loaded
    )
    assert found.prompt_logprobs and wanted.prompt_logprobs
    off = [abs(a - b) for a, b in zip(_logprobs(found), _logprobs(wanted), strict=True)]
    assert sum(off) / len(off) < 0.03, "with scales of another type or rows in another order it is 1 or more"


def _logprobs(answered: Any) -> list[float]:
    return [each.logprob for each in answered.prompt_logprobs if each is not None]


def test_a_crowd_changes_nothing(repository: Repository, version: Manifest, tmp_path: Path) -> None:
    """By the library's model, by the record of that, and with weights that processes share; a tied matrix lies in
    memory once."""
    directory, told, memory = repository.path(version), [], []
    for shared in (False, False, True):
        fields = {"block_size": 8, "findings": str(tmp_path / "r.record"), "share_weights": shared}
        loaded = Loaded.of(directory, "file", **fields)
        assert loaded.info.forward == ("transformers" if library() is None and version.name == "experts" else "decoder")
        alone = {one.id: answer(loaded.core(caching=False), {0: [one]})[one.id] for one in requests()}
        assert answer(loaded.core(90), {0: requests()}) == alone
        told.append(alone)
        memory.append(loaded.info.memory_bytes)
    assert told[0] == told[1] == told[2]
    if library() is not None:
        dense = 300 * 256 * 2 if version.name == "untied" else 0
        assert max(memory) < 1.1 * version.size + dense


def test_an_import_takes_the_same_parent(repository: Repository, tmp_path: Path) -> None:
    path = written(tmp_path, "tied", ("Q8_0",))
    first, again = (import_source(repository, str(path), "same", precision="file") for _ in range(2))
    assert first.lineage.parent == again.lineage.parent == "same:1" and first.digest == again.digest


def test_what_is_no_file_of_blocks_is_refused_with_a_way_out(repository: Repository, tmp_path: Path) -> None:
    plain, mixed = written(tmp_path, "tied"), tmp_path / "mixed.gguf"
    gguf_files.of_checkpoint(tmp_path / "tied-source", mixed, gguf_files.bf16)
    for source, reason in ((mixed, "matrices in BF16"), (tmp_path / "tied-source", "the source is none")):
        with pytest.raises(InvalidSource, match=f"{reason}.*choose another precision"):
            import_source(repository, str(source), "refused", precision="file")
    assert import_source(repository, str(mixed), "dense").precision == "bf16"
    assert gguf_file.read(plain)[1] == ""
    with pytest.raises(Conflict, match="made of a GGUF file"):
        quantize(repository, repository.get("dense", "1"), "file")
    made = import_source(repository, str(plain), "plain")
    with pytest.raises(Conflict, match="cannot become int8"):
        quantize(repository, made, "int8")


def test_a_scale_that_is_no_number_is_refused(repository: Repository, tmp_path: Path) -> None:
    path = written(tmp_path, "tied", ("Q4_0",))
    content = bytearray(path.read_bytes())
    content[-18:-16] = b"\x00\x7c"  # the last block's scale
    path.write_bytes(content)
    with pytest.raises(InvalidSource):
        import_source(repository, str(path), "damaged", precision="file")


def test_its_parent_is_checked_and_stays_while_it_is_read(repository: Repository, tmp_path: Path) -> None:
    path = written(tmp_path, "tied", ("Q8_0",))
    parent = repository.resolve(import_source(repository, str(path), "checked").lineage.parent or "")
    tried = list[str]()

    def deleting(share: float, phase: str) -> None:
        if share > 0:
            with pytest.raises(Conflict, match="in use"):
                repository.delete(parent.name, parent.version)
            tried.append(phase)

    assert publish_file(repository, parent, path, progress=deleting).version == "3" and tried
    weights = repository.path(parent) / "model.safetensors"
    weights.chmod(0o644)
    content = weights.read_bytes()
    weights.write_bytes(content[:-100] + bytes(100))
    with pytest.raises(Corrupt, match=r"model\.safetensors is not what was published"):
        publish_file(repository, parent, path)
