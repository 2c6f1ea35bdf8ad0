"""What a checkpoint will need, compared with what its versions take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.errors import InvalidSource
from models.importing import import_source
from models.manifest import Precision
from models.needs import API_BYTES, ENGINE_BYTES, Needs, Wanted, needs_of
from models.repository import Repository
from tests.checkpoints import save_bart, save_gpt2, save_llama, save_t5

WANTED = Wanted("int8", "auto", 0, 4, 0.4)


def needs(source: Path, wanted: Wanted = WANTED, free: int = 1 << 40) -> Needs:
    sizes = [path.stat().st_size for path in source.glob("*.safetensors")]
    return needs_of(source / "config.json", sum(sizes), max(sizes), wanted, free)


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
    told = needs(source, replace(WANTED, precision=precision))
    assert told.kept == pytest.approx(weights(repository, "tiny"), abs=24_000)
    assert told.disk >= told.kept + (source / "model.safetensors").stat().st_size


def test_by_hand(tmp_path: Path) -> None:
    """1 layer, 2 key-value heads of 64: 2 · 2 · 64 numbers a token, in bf16 twice the bytes."""
    source = save_llama(tmp_path / "source", torch.float32, width=256, window=4096)
    size = (source / "model.safetensors").stat().st_size
    told = needs(source, replace(WANTED, precision="bf16"))
    token = 2 * 2 * 64 * 2
    assert told.parameters == 260 * 256 + 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 384 + 3 * 256
    assert told.kept == 2 * told.parameters
    assert told.disk == size + size + size  # the download, its copy, and the copy's conversion beside it
    assert told.serving == 2 * told.parameters + ENGINE_BYTES + API_BYTES + 2048 * token
    assert told.kv_cache == (4 * 4096 - 2048) * token
    assert needs(source, replace(WANTED, precision="bf16", kv_dtype="int8")).kv_cache < 0.6 * told.kv_cache


def test_the_cache_takes_a_share_of_what_is_free(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source", window=4096)
    told = needs(source, free=API_BYTES + ENGINE_BYTES + (1 << 20))
    assert told.kv_cache < needs(source).kv_cache
    fixed = needs(source, replace(WANTED, cache_bytes=1 << 30))
    assert fixed.serving > 1 << 30 and fixed.kv_cache == 0


def test_what_is_not_served_has_no_needs(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text.replace("LlamaForCausalLM", "OddForCausalLM"))
    with pytest.raises(InvalidSource, match="OddForCausalLM"):
        needs(source)
    assert (source / "config.json").read_text() == text.replace("LlamaForCausalLM", "OddForCausalLM")
