"""An adapter that PEFT saved becomes a version of its base, unchanged; one that cannot be served is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.errors import Conflict, Corrupt, InvalidSource, NotFound
from models.imports.importing import import_source
from models.imports.upkeep import collect, sweep
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Manifest
from models.repository.archive import export
from models.repository.repository import Repository
from models.weights import adapters
from models.weights.quantize import quantize
from tests.checkpoints import save_gpt2, save_llama

PEFTS = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "data")
    import_source(repository, str(save_llama(tmp_path / "llama")), "demo")
    return repository


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "llama", tmp_path / "adapter")


def save_adapter(base: Path, directory: Path, save_embedding_layers: Any = False, **config: Any) -> Path:
    """As PEFT saves it, with its model card; B is not zero."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True)
    fields = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", **config}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**fields))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter))
    adapted.save_pretrained(str(directory), save_embedding_layers=save_embedding_layers)
    return directory


def edit(directory: Path, **changes: object) -> None:
    path = directory / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def imported(repository: Repository, adapter: Path, **options: Any) -> Manifest:
    return import_source(repository, str(adapter), "demo", **{"adapter_of": "demo:1", **options})


def test_a_version_with_an_adapter_is_whole(repository: Repository, adapter: Path) -> None:
    parent, manifest = repository.get("demo", "1"), imported(repository, adapter)
    repository.verify(manifest)
    files = {file.path: file for file in manifest.files}
    assert files.keys() - {file.path for file in parent.files} == {ADAPTER_CONFIG, ADAPTER_WEIGHTS}
    assert all(files[file.path] == file for file in parent.files)
    assert (manifest.base_digest, manifest.precision) == (parent.digest, parent.precision)
    assert (manifest.parameters, manifest.reference) == (parent.parameters, "demo:2")
    assert (manifest.lineage.parent, manifest.lineage.parent_digest) == ("demo:1", parent.digest)
    assert manifest.lineage.recipe == "LoRA adapter: rank 4, alpha 6, 7 linear layers"
    assert repository.findings_path(manifest) == repository.findings_path(parent)


def test_what_is_stored_is_what_peft_saved(repository: Repository, adapter: Path) -> None:
    directory = repository.path(imported(repository, adapter))
    modules = {each.module: each for each in adapters.read(directory)}
    assert {(each.rank, each.scale) for each in modules.values()} == {(4, 1.5)}
    stored, saved = load_file(directory / ADAPTER_WEIGHTS), load_file(adapter / ADAPTER_WEIGHTS)
    assert len(stored) == len(saved) == 14
    for name, tensor in stored.items():
        assert torch.equal(tensor, saved[f"base_model.model.{name}"].to(torch.bfloat16))


def test_the_parent_s_files_take_no_disk_again(repository: Repository, adapter: Path) -> None:
    parent, manifest = repository.get("demo", "1"), imported(repository, adapter)
    for file in parent.files:
        mine, theirs = (repository.path(each) / file.path for each in (manifest, parent))
        assert mine.stat().st_ino == theirs.stat().st_ino
    repository.delete("demo", "1")
    collect(repository)
    repository.verify(manifest)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8-weight"])
def test_parents_of_other_precisions(tmp_path: Path, precision: str) -> None:
    repository = Repository(tmp_path / "other")
    parent = import_source(repository, str(save_llama(tmp_path / "llama")), "demo", precision=precision)
    adapter = save_adapter(tmp_path / "llama", tmp_path / "adapter")
    manifest = imported(repository, adapter, adapter_of=parent.reference, precision=precision)
    assert (manifest.precision, manifest.base_digest) == (precision, parent.digest)
    stored = load_file(repository.path(manifest) / ADAPTER_WEIGHTS)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32 if precision == "fp32" else torch.bfloat16}


def test_scales_are_resolved_by_module(repository: Repository, tmp_path: Path) -> None:
    source = save_adapter(
        tmp_path / "llama",
        tmp_path / "patterns",
        use_rslora=True,
        rank_pattern={"q_proj": 9},
        alpha_pattern={"layers.0.mlp.down_proj": 10, "^model.layers.0.mlp.up_proj": 20, "mlp.gate_proj.no": 99},
    )
    found = {each.module: each for each in adapters.read(repository.path(imported(repository, source)))}
    layer = "model.layers.0."
    assert (found[f"{layer}self_attn.q_proj"].rank, found[f"{layer}self_attn.q_proj"].scale) == (9, 2.0)
    assert found[f"{layer}mlp.down_proj"].scale == 5.0
    assert found[f"{layer}mlp.up_proj"].scale == 10.0
    assert found[f"{layer}mlp.gate_proj"].scale == 3.0


def test_patterns_are_expressions_as_peft_reads_them(repository: Repository, tmp_path: Path) -> None:
    patterns = {r".*\.self_attn\.(q|k)_proj": 9, "^model.layers.0.mlp.(?:up|down)_proj": 3, "proj": 99}
    source = save_adapter(tmp_path / "llama", tmp_path / "patterns", rank_pattern=patterns)
    found = {
        each.module.rpartition(".")[2]: each.rank
        for each in adapters.read(repository.path(imported(repository, source)))
    }
    assert found == {"q_proj": 9, "k_proj": 9, "v_proj": 4, "o_proj": 4, "gate_proj": 4, "up_proj": 3, "down_proj": 3}


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_of_the_head_comes_with_copies_of_the_base(tmp_path: Path, tied: bool, precision: str) -> None:
    """PEFT saves head and embedding again beside it. Where they are not the base's, they were trained."""
    repository, source = Repository(tmp_path / "data"), tmp_path / "head"
    parent = import_source(repository, str(save_llama(tmp_path / "llama", tied=tied)), "demo", precision=precision)
    save_adapter(tmp_path / "llama", source, target_modules=["lm_head", "q_proj"], save_embedding_layers="auto")
    saved = load_file(source / ADAPTER_WEIGHTS)
    assert any("base_layer" in name for name in saved), "what PEFT saves"
    manifest = imported(repository, source, adapter_of=parent.reference)
    found = [each.module for each in adapters.read(repository.path(manifest))]
    assert found == ["lm_head", "model.layers.0.self_attn.q_proj"]
    name = next(name for name in saved if name.endswith("base_layer.weight"))
    save_file(saved | {name: saved[name] + 1}, source / ADAPTER_WEIGHTS)
    with pytest.raises(InvalidSource, match="is not the weight of demo"):
        imported(repository, source, adapter_of=parent.reference)


def test_conv1d(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    import_source(repository, str(save_gpt2(tmp_path / "gpt2")), "demo")
    source = save_adapter(tmp_path / "gpt2", tmp_path / "peft", fan_in_fan_out=True, target_modules=["c_attn"])
    assert [each.module for each in adapters.read(repository.path(imported(repository, source)))] == [
        "transformer.h.0.attn.c_attn"
    ]


CONFIGS: dict[str, dict[str, object]] = {
    "peft_type": {"peft_type": "IA3"},
    "lora_magnitude_vector": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "bias": {"bias": "all"},
    "lora_bias": {"lora_bias": True},
    "layer_replication": {"layer_replication": [[0, 1]]},
    "trainable_token_indices": {"trainable_token_indices": [1]},
    "target_parameters": {"target_parameters": ["mlp.experts"]},
    "alora_invocation_tokens": {"alora_invocation_tokens": [5]},
    "use_qalora": {"use_qalora": True},
    "something_new": {"something_new": 1},
    "init_lora_weights": {"init_lora_weights": "pissa"},
    "auto_map": {"auto_map": {"AutoModel": "x.Y"}},
    "the rank": {"r": 5},
    "alpha_pattern": {"alpha_pattern": {"(a+)+$": 2}},
    "rank_pattern": {"rank_pattern": {"(a|a)" * 30: 2}},
    "not a number": {"lora_alpha": "big"},
}


@pytest.mark.parametrize("named", CONFIGS)
def test_what_is_not_served_is_refused_by_name(repository: Repository, adapter: Path, named: str) -> None:
    edit(adapter, **CONFIGS[named])
    refused(repository, adapter, named)


def refused(repository: Repository, adapter: Path, named: str) -> None:
    with pytest.raises(InvalidSource, match=named):
        imported(repository, adapter)
    assert len(repository.versions("demo")) == 1
    assert sweep(repository, older_than=0) == []


Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], object]
TENSORS: dict[str, tuple[str, Change]] = {
    "an embedding": ("no embedding", lambda t: t.update({"base_model.model.x.lora_embedding_A": torch.ones(1)})),
    "a base layer": ("base_layer", lambda t: t.update({"base_model.model.x.base_layer.weight": torch.ones(1, 1)})),
    "another model": ("no linear layer", lambda t: t.update({"base_model.model.x.lora_A.weight": torch.ones(1, 1)})),
    "half": ("needs", lambda t: t.pop(PEFTS.format("B"))),
    "ranks": ("do not fit each other", lambda t: t.update({PEFTS.format("B"): torch.ones(32, 3)})),
    "rank 0": (
        "above 0",
        lambda t: t.update({PEFTS.format("A"): torch.ones(0, 32), PEFTS.format("B"): torch.ones(32, 0)}),
    ),
    "width": ("do not fit the base", lambda t: t.update({PEFTS.format("B"): torch.ones(31, 4)})),
    "dimensions": ("do not fit", lambda t: t.update({PEFTS.format("A"): torch.ones(4)})),
    "infinite": ("not finite", lambda t: t[PEFTS.format("A")].__setitem__((0, 0), float("inf"))),
    "magnitudes without DoRA": (
        "and has .*lora_magnitude_vector",
        lambda t: t.update({PEFTS.format("magnitude_vector"): torch.ones(32)}),
    ),
    "integers": ("floating", lambda t: t.update({PEFTS.format("A"): torch.ones(4, 32, dtype=torch.int8)})),
    "nothing": ("no tensor", lambda t: t.clear()),
}


@pytest.mark.parametrize("case", TENSORS)
def test_weights_that_do_not_fit(repository: Repository, adapter: Path, case: str) -> None:
    named, change = TENSORS[case]
    tensors = load_file(adapter / ADAPTER_WEIGHTS)
    change(tensors)
    save_file(tensors, adapter / ADAPTER_WEIGHTS)
    refused(repository, adapter, named)


def test_nothing_is_merged_into_codes(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    parent = import_source(repository, str(save_llama(tmp_path / "llama")), "demo", precision="int8")
    source = save_adapter(tmp_path / "llama", tmp_path / "adapter", use_dora=True)
    with pytest.raises(InvalidSource, match=r"is int8, and DoRA .*: name demo:1, which it was made of"):
        imported(repository, source, adapter_of=parent.reference)
    repository.delete("demo", "1")
    with pytest.raises(InvalidSource, match="import its base in bf16"):
        imported(repository, source, adapter_of=parent.reference)


def test_a_parent_that_has_the_name_of_its_own_parent_was_made_of_nothing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an export of demo:2, made of demo:1, that is imported elsewhere, where it is demo:1."""
    repository = Repository(tmp_path / "data")
    export(
        repository,
        import_source(repository, str(save_llama(tmp_path / "llama")), "demo", precision="int8"),
        tmp_path / "demo.tar",
    )
    elsewhere, looks = Repository(tmp_path / "elsewhere"), count(1)
    parent = import_source(elsewhere, str(tmp_path / "demo.tar"), "demo")
    assert (parent.reference, parent.lineage.parent) == ("demo:1", "demo:1")
    source, resolve = save_adapter(tmp_path / "llama", tmp_path / "adapter", use_dora=True), elsewhere.resolve

    def few(reference: str) -> Manifest:
        assert next(looks) < 10
        return resolve(reference)

    monkeypatch.setattr(elsewhere, "resolve", few)
    with pytest.raises(InvalidSource, match="import its base in bf16"):
        imported(elsewhere, source)


def test_added_tokens_have_no_row_in_the_base(repository: Repository, tmp_path: Path) -> None:
    source = save_adapter(tmp_path / "llama", tmp_path / "adapter", modules_to_save=["lm_head"])
    larger = {"base_model.model.lm_head.weight": torch.ones(261, 32)}
    save_file(load_file(source / ADAPTER_WEIGHTS) | larger, source / ADAPTER_WEIGHTS)
    refused(repository, source, r"\[261, 32\].*tokens were added")


def test_pickles_are_refused(repository: Repository, adapter: Path) -> None:
    (adapter / ADAPTER_WEIGHTS).rename(adapter / "adapter_model.bin")
    refused(repository, adapter, r"adapter_model\.bin")
    (adapter / "adapter_model.bin").unlink()
    refused(repository, adapter, "is missing")


def test_an_adapter_and_its_base_belong_together(repository: Repository, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSource, match="adapter_of"):
        import_source(repository, str(adapter), "demo")
    with pytest.raises(InvalidSource, match="no PEFT adapter"):
        imported(repository, tmp_path / "llama")
    with pytest.raises(InvalidSource, match="in its precision, bf16"):
        imported(repository, adapter, precision="int8")
    with pytest.raises(NotFound):
        imported(repository, adapter, adapter_of="demo:7")
    manifest = imported(repository, adapter)
    with pytest.raises(Conflict, match="name its base, demo:1"):
        imported(repository, adapter, adapter_of=manifest.reference)
    with pytest.raises(Conflict, match="quantize its base, demo:1"):
        quantize(repository, manifest)


def test_a_damaged_parent_has_no_adapters(repository: Repository, adapter: Path) -> None:
    weights = repository.path(repository.get("demo", "1")) / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(Corrupt, match=r"model\.safetensors"):
        imported(repository, adapter)
    assert len(repository.versions("demo")) == 1


def test_export_and_import_again(repository: Repository, adapter: Path, tmp_path: Path) -> None:
    manifest = imported(repository, adapter)
    export(repository, manifest, tmp_path / "exported.tar")
    other = Repository(tmp_path / "other")
    again = import_source(other, str(tmp_path / "exported.tar"), "copy")
    other.verify(again)
    assert (again.digest, again.base_digest, again.lineage) == (manifest.digest, manifest.base_digest, manifest.lineage)
    with pytest.raises(InvalidSource, match="without adapter_of"):
        import_source(other, str(tmp_path / "exported.tar"), "copy", adapter_of="copy:1")


@pytest.mark.parametrize(
    "kept",
    ["", '{"modules": {}}', '{"modules": {"lm_head": {"rank": 4, "scale": 1.0}}}', '{"modules": {"x": 1}}', "[]"],
)
def test_an_export_is_believed_only_as_far_as_its_files_fit(
    repository: Repository, adapter: Path, tmp_path: Path, kept: str
) -> None:
    """A manifest of somebody's own making, whose digests are right."""
    parent = repository.get("demo", "1")
    with repository.stage() as staged:
        for file in parent.files:
            (staged / file.path).write_bytes((repository.path(parent) / file.path).read_bytes())
        (staged / ADAPTER_WEIGHTS).write_bytes((adapter / ADAPTER_WEIGHTS).read_bytes())
        if kept:
            (staged / ADAPTER_CONFIG).write_text(kept)
        made = repository.publish(staged, parent.facts, "forged")
    with pytest.raises(InvalidSource, match=r"adapter_config|lora_A"):
        import_source(Repository(tmp_path / "other"), str(repository.path(made)), "copy")
