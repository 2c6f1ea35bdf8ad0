"""A config.json as others write it: what only names their code is dropped, of a multimodal model the part for text is
served, and a value of the wrong kind is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from models.checkpoint import config_policy
from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights import fit, skeleton
from tests.checkpoints import save_llama, save_tokenizer
from tests.unit.test_importing import edit_json

TEXT: Final[dict[str, Any]] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
VISION: Final[dict[str, Any]] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 16,
}
WHOLES: Final[dict[str, Any]] = {
    "gemma3": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=TEXT | {"sliding_window": 16}, vision_config=VISION, mm_tokens_per_image=4)
    ),
    "llava": lambda: LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=TEXT | {"model_type": "llama"},
            vision_config=VISION | {"model_type": "clip_vision_model"},
            tie_word_embeddings=False,
        )
    ),
}


@pytest.mark.parametrize("shards", ["5GB", "20KB"])
@pytest.mark.parametrize("kind", WHOLES)
def test_the_part_for_text_is_served(tmp_path: Path, kind: str, shards: str) -> None:
    torch.manual_seed(0)
    whole: Any = WHOLES[kind]()
    whole.save_pretrained(tmp_path / "whole", max_shard_size=shards)
    save_tokenizer(tmp_path / "whole")
    repository = Repository(tmp_path / "data")
    manifest = import_source(repository, str(tmp_path / "whole"), "demo", precision="fp32")
    assert f"the part for text of {type(whole).__name__}" in manifest.lineage.recipe
    text: Any = AutoModelForCausalLM.from_pretrained(repository.path(manifest), dtype=torch.float32)
    ids = torch.arange(40)[None] % 260
    with torch.no_grad():
        torch.testing.assert_close(text(ids).logits, whole(ids).logits, rtol=1e-5, atol=1e-5)


def test_a_multimodal_model_without_such_a_part_is_refused_as_that(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    for changes in (
        {"text_config": {"model_type": "mllama_text_model"}},
        {"vision_config": {}, "model_type": "qwen2_vl"},
    ):
        edit_json(source / "config.json", architectures=["MllamaForConditionalGeneration"], **changes)
        with pytest.raises(InvalidSource, match="multimodal"):
            import_source(Repository(tmp_path / "data"), str(source), "demo")


def test_keys_of_code_elsewhere_are_dropped_and_noted(tmp_path: Path) -> None:
    source, repository = save_llama(tmp_path / "source"), Repository(tmp_path / "data")
    edit_json(
        source / "config.json",
        auto_map={"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        _attn_implementation="flash_attention_2",
    )
    edit_json(source / "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]}, bos_token="<s>")
    manifest = import_source(repository, str(source), "demo")
    kept = json.loads((repository.path(manifest) / "config.json").read_text())
    for key in ("auto_map", "_attn_implementation"):
        assert key not in kept
        assert key in manifest.lineage.recipe
    kept = json.loads((repository.path(manifest) / "tokenizer_config.json").read_text())
    assert kept == {"bos_token": "<s>"}
    assert "tokenizer_config.json without auto_map" in manifest.lineage.recipe


def test_code_that_nothing_replaces_is_no_tokenizer(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    (source / "tokenizer.json").rename(source / "vocab.json")
    edit_json(source / "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]})
    with pytest.raises(InvalidSource, match=r"tokenizer_config\.json has the key 'auto_map'"):
        import_source(Repository(tmp_path / "data"), str(source), "demo")


VALUES: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, 10**30, -(10**12)]),
    st.sampled_from([0.0, -1.5, 0.5, float("nan"), float("inf"), 1e300]),
    st.sampled_from(["", "big", "8", "silu", "\ud800"]),
    st.lists(st.sampled_from([0, "x", None, {}]), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "x"]), st.sampled_from([1, "yarn", None, []]), max_size=2),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@given(data=st.data())
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(checkpoint: Path, data: st.DataObject) -> None:
    """Whatever is not refused builds a model that fits the weights."""
    told = json.loads((checkpoint / "config.json").read_text())
    key = data.draw(st.sampled_from([*sorted(told), "rope_scaling", "head_dim", "sliding_window", "layer_types"]))
    directory = checkpoint / "changed"
    directory.mkdir(exist_ok=True)
    (directory / "model.safetensors").unlink(missing_ok=True)
    (directory / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    try:
        changed = json.dumps(told | {key: data.draw(VALUES)}).encode()
        accepted = config_policy.accept(config_policy.parse_json(changed, key))
        (directory / "config.json").write_text(config_policy.as_text(accepted.config))
        fit.check_tensors(directory, skeleton.build(directory))
    except InvalidSource as error:
        said = str(error)
        assert key.removesuffix("s") in said or "has the shape" in said or "The weights" in said, said


HOSTILE: Final[dict[str, dict[str, Any]]] = {
    "layers and heads": {
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        "qk_layernorm": True,
        "num_hidden_layers": 100,
        "num_attention_heads": 32,
    },
    "blocks": {"model_type": "xlstm", "architectures": ["xLSTMForCausalLM"], "num_blocks": 1_000_000},
    "projections": {
        "model_type": "gemma3n_text",
        "architectures": ["Gemma3nForCausalLM"],
        "altup_num_inputs": 1_000_000,
    },
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_model_of_too_many_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(skeleton, "_MOST_PARTS", 5_000)
    (tmp_path / "config.json").write_text(json.dumps(HOSTILE[kind]))
    with pytest.raises(InvalidSource, match="a model of more than 5,000 modules and parameters"):
        skeleton.build(tmp_path)


def test_a_number_within_a_list_is_bounded_by_its_key() -> None:
    told: dict[str, object] = {"attention_types": [[["global", "local"], 12]], "num_layers": 24}
    config_policy.refuse_unusable(told)
    with pytest.raises(InvalidSource, match="1000000000 as 'attention_types', and at most 1,000"):
        config_policy.refuse_unusable(told | {"attention_types": [[["global"], 10**9]]})


@pytest.mark.parametrize(("layers", "experts"), [(61, 384), (94, 128), (48, 2_048)])
def test_the_experts_of_published_mixtures_are_accepted(layers: int, experts: int) -> None:
    config_policy.refuse_unusable({"num_hidden_layers": layers, "ffn_config": {"moe_num_experts": experts}})


def test_experts_of_all_layers_are_bounded_by_both_keys() -> None:
    for told in ({"num_experts": 10_000}, {"ffn_config": {"moe_num_experts": [10_000, 2]}}):
        with pytest.raises(InvalidSource, match=r"1,000 as 'num_hidden_layers' and 10,000 as '(moe_)?num_experts'"):
            config_policy.refuse_unusable({"num_hidden_layers": 1_000, **told})
