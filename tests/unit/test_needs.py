"""The forecast needs of a checkpoint, compared with what its versions take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.manifest import Precision
from models.repository.repository import Repository
from models.weights.skeleton import of_config
from service.deployments.needs import ENGINE_BYTES, Files, Needs, needs_of
from service.settings import Settings
from tests.checkpoints import save_bart, save_gpt2, save_llama, save_t5

SETTINGS = Settings(max_num_seqs=4)


def needs(source: Path, precision: str = "int8", settings: Settings = SETTINGS, free: int = 1 << 40) -> Needs:
    sizes = [path.stat().st_size for path in source.glob("*.safetensors")]
    return needs_of(of_config(source / "config.json"), Files(sum(sizes), max(sizes)), precision, settings, free)


def weights(repository: Repository, name: str) -> int:
    files = (file for version in repository.versions(name) for file in version.files)
    return sum(file.size for file in files if file.path.endswith(".safetensors"))


@pytest.mark.parametrize("save", [save_llama, save_gpt2, save_t5, save_bart])
@pytest.mark.parametrize("precision", ["bf16", "fp32", "int8"])
def test_versions_take_what_was_said(tmp_path: Path, save: Callable[[Path], Path], precision: Precision) -> None:
    """But for the headers of the files, and BART's copy of an embedding: kilobytes, as these checkpoints are small."""
    source = save(tmp_path / "source")
    repository = Repository(tmp_path / "data")
    import_source(repository, str(source), "tiny", precision=precision)
    told = needs(source, precision)
    assert told.kept == pytest.approx(weights(repository, "tiny"), abs=24_000)
    assert told.disk >= told.kept + (source / "model.safetensors").stat().st_size


def test_by_hand(tmp_path: Path) -> None:
    """1 layer, 2 key-value heads of 64: 2 · 2 · 64 numbers a token, in bf16 twice the bytes."""
    source = save_llama(tmp_path / "source", torch.float32, width=256, window=4096)
    size = (source / "model.safetensors").stat().st_size
    told = needs(source, "bf16")
    token = 2 * 2 * 64 * 2
    assert told.parameters == 260 * 256 + 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 384 + 3 * 256
    assert told.kept == 2 * told.parameters
    assert told.disk == size + size + size  # the download, its copy, and the copy's conversion beside it
    assert told.loading == 2 * told.parameters + ENGINE_BYTES
    assert (told.kv_cache, told.kv_tokens) == (4 * 4096 * token, 4 * 4096)
    small = needs(source, "bf16", Settings(max_num_seqs=4, kv_cache_dtype="int8"))
    assert small.kv_cache == 4 * 4096 * 2 * 2 * (64 + 4), "a row of 8 bits has a scale of 4 bytes"
    assert needs(source, "fp32").kv_cache == 2 * told.kv_cache


def test_the_cache_takes_a_share_of_what_is_free(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source", window=4096)
    block = 16 * 2 * 2 * 8 * 2
    assert needs(source, free=1 << 20).kv_cache == 0.4 * (1 << 20) // block * block
    fixed = needs(source, settings=Settings(kv_cache_bytes=1 << 30))
    assert fixed.kv_cache == 1 << 30


def test_what_is_not_served_has_no_needs(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text.replace("LlamaForCausalLM", "OddForCausalLM"))
    with pytest.raises(InvalidSource, match="OddForCausalLM"):
        needs(source)
    assert (source / "config.json").read_text() == text.replace("LlamaForCausalLM", "OddForCausalLM")
