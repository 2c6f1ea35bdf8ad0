"""An export comes back as it was; what its manifest or its report says is believed as far as the files bear it out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.imports.upkeep import sweep
from models.manifest import ADAPTER_WEIGHTS, File, Manifest
from models.repository.archive import REPORT, export
from models.repository.disk.staging import MANIFEST, sha256_of
from models.repository.repository import Repository
from models.weights.quantize import quantize
from tests.checkpoints import save_llama, save_t5
from tests.gguf_files import convert_here
from tests.golden.test_file_versions import written
from tests.reports import report
from tests.unit.test_adapters import save_adapter

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """`tiny:1` is bf16, `tiny:2` int8-weight."""
    home = tmp_path_factory.mktemp("home")
    repository = Repository(home / "data")
    quantize(repository, import_source(repository, str(save_llama(home / "llama")), "tiny"), "int8-weight")
    return repository


def exported(repository: Repository, version: str, directory: Path, **facts: Any) -> Path:
    """The files of a version of `tiny`, whose manifest has these facts."""
    manifest = repository.get("tiny", version)
    shutil.copytree(repository.path(manifest), directory)
    for path in directory.iterdir():
        path.chmod(0o644)
    (directory / MANIFEST).write_text(replace(manifest, **facts).to_json())
    return directory


def with_tensors(directory: Path, change: Callable[[Tensors], object]) -> Path:
    """Changes the weights, and lets the manifest say so."""
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    described = File(WEIGHTS, (directory / WEIGHTS).stat().st_size, sha256_of(directory / WEIGHTS))
    manifest = Manifest.from_json((directory / MANIFEST).read_text())
    files = tuple(described if file.path == WEIGHTS else file for file in manifest.files)
    (directory / MANIFEST).write_text(replace(manifest, files=files).to_json())
    return directory


def refused(tmp_path: Path, source: Path, named: str) -> None:
    other = Repository(tmp_path / "other")
    with pytest.raises(InvalidSource, match=named):
        import_source(other, str(source), "copy")
    assert other.models() == []
    assert sweep(other, older_than=0) == []


@pytest.mark.parametrize(
    ("version", "facts", "named"),
    [
        ("1", {"context_window": 1_000_000}, "'1000000' as context_window, and the files '128'"),
        ("1", {"context_window": 0}, "context_window"),
        ("1", {"vocab_size": 5}, "vocab_size"),
        ("1", {"parameters": 10**30}, "parameters"),
        ("1", {"architecture": "GPT2LMHeadModel"}, "architecture"),
        ("1", {"dtype": "F13"}, "'F13' as dtype, and the files 'BF16'"),
        ("1", {"precision": "fp32", "dtype": "F32"}, "is stored as BF16, and not as F32"),
        ("1", {"precision": "int8"}, "says int8, and the tensors are not stored in that precision"),
        ("1", {"precision": "file"}, "says file"),
        ("2", {"precision": "bf16"}, "says bf16"),
        ("2", {"precision": "int4"}, "says int4"),
        ("2", {"dtype": "F32"}, "'F32' as dtype"),
    ],
)
def test_facts_that_the_files_do_not_bear_out(
    repository: Repository, tmp_path: Path, version: str, facts: dict[str, Any], named: str
) -> None:
    refused(tmp_path, exported(repository, version, tmp_path / "export", **facts), named)


@pytest.mark.parametrize(
    ("version", "name", "number"),
    [
        ("1", "model.norm.weight", float("nan")),
        ("2", "model.norm.weight", float("inf")),
        ("2", "model.layers.0.mlp.up_proj.weight_scale", float("nan")),
    ],
)
def test_weights_that_are_no_numbers(
    repository: Repository, tmp_path: Path, version: str, name: str, number: float
) -> None:
    source = with_tensors(
        exported(repository, version, tmp_path / "export"), lambda tensors: tensors[name].view(-1)[3:4].fill_(number)
    )
    refused(tmp_path, source, f"{name} has values that are not finite")


def without_file(directory: Path, name: str) -> None:
    manifest = Manifest.from_json((directory / MANIFEST).read_text())
    files = tuple(file for file in manifest.files if file.path != name)
    (directory / MANIFEST).write_text(replace(manifest, files=files).to_json())


def of_another_size(directory: Path) -> None:
    manifest = Manifest.from_json((directory / MANIFEST).read_text())
    files = (replace(manifest.files[0], size=1), *manifest.files[1:])
    (directory / MANIFEST).write_text(replace(manifest, files=files).to_json())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda directory: without_file(directory, "config.json"), "lists no config.json"),
        (lambda directory: without_file(directory, WEIGHTS), "no tensor"),
        (lambda directory: (directory / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda directory: (directory / MANIFEST).write_text("[" * 200_000), "manifest.json is nested too deep"),
        (lambda directory: (directory / MANIFEST).write_text("{}"), "manifest.* is missing: export the version again"),
        (of_another_size, "config.json is not what was exported"),
    ],
)
def test_an_export_that_is_not_whole(
    repository: Repository, tmp_path: Path, change: Callable[[Path], object], named: str
) -> None:
    source = exported(repository, "1", tmp_path / "export")
    change(source)
    refused(tmp_path, source, named)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b'"digest"', b'"other"', "is damaged"),
        (b'"perplexity": 1.25', b'"perplexity": 0', "perplexity"),
        (b'"memory_bytes": 1000', b'"memory_bytes": 0', "memory_bytes"),
        (b'"right": 9', b'"right": 50', "50 of 10 answers cannot be right"),
        (b'"tokens": 60', b'"tokens": -60', "tokens"),
        (b'"loss": 1.5', b'"loss": 1e308', "loss"),
        (b'"clear_top1_agreement": 0.995', b'"clear_top1_agreement": 5', "clear_top1_agreement"),
    ],
)
def test_a_report_that_cannot_be_taken_publishes_nothing(
    repository: Repository, tmp_path: Path, old: bytes, new: bytes, named: str
) -> None:
    source = exported(repository, "1", tmp_path / "export")
    content = report(repository.get("tiny", "1"), losses=(1.5, 2.5)).to_json()
    assert content.count(old)
    (source / REPORT).write_bytes(content.replace(old, new, 1))
    refused(tmp_path, source, f"{named}.*take report.json out")


def came_back(repository: Repository, manifest: Manifest, tmp_path: Path) -> None:
    repository.put_report(manifest, report(manifest, losses=(1.5, 2.5)))
    export(repository, manifest, tmp_path / "version.tar")
    other = Repository(tmp_path / "other")
    again = import_source(other, str(tmp_path / "version.tar"), "copy")
    other.verify(again)
    assert (again.digest, again.facts) == (manifest.digest, manifest.facts)
    assert other.report(again) == repository.report(manifest)


def calibrate(directory: Path, window: int) -> list[list[int]]:
    return [[at % 250 for at in range(64)]] * 4


@pytest.mark.parametrize("precision", ["bf16", "fp32", "int8", "int8-weight", "llm-int8", "int4"])
def test_every_precision_comes_back(tmp_path: Path, precision: str) -> None:
    repository = Repository(tmp_path / "data")
    source = str(save_llama(tmp_path / "llama", shards="20KB"))
    came_back(repository, import_source(repository, source, "tiny", None, precision, calibrate=calibrate), tmp_path)


def test_an_encoder_decoder_comes_back(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    came_back(repository, import_source(repository, str(save_t5(tmp_path / "t5")), "tiny", None, "int8"), tmp_path)


@pytest.mark.parametrize("parent", ["1", "2"])
def test_an_adapter_comes_back_and_has_numbers(repository: Repository, tmp_path: Path, parent: str) -> None:
    adapter = save_adapter(save_llama(tmp_path / "llama"), tmp_path / "adapter")
    manifest = import_source(repository, str(adapter), "adapted", adapter_of=f"tiny:{parent}")
    came_back(repository, manifest, tmp_path)
    tensors = load_file(repository.path(manifest) / ADAPTER_WEIGHTS)
    tensors[min(tensors)].view(-1)[0] = float("nan")
    with repository.stage() as staged:
        for file in manifest.files:
            shutil.copy(repository.path(manifest) / file.path, staged / file.path)
        (staged / ADAPTER_WEIGHTS).chmod(0o644)
        save_file(tensors, staged / ADAPTER_WEIGHTS)
        forged = repository.publish(staged, manifest.facts, "forged")
    refused(tmp_path / "nan", repository.path(forged), "not finite")


def test_a_file_version_comes_back_and_has_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert_here(monkeypatch)
    repository = Repository(tmp_path / "data")
    manifest = import_source(repository, str(written(tmp_path, "tied", ("Q8_0",))), "tiny")
    came_back(repository, manifest, tmp_path)
    name = "model.layers.0.mlp.up_proj.weight_q8_0"
    infinite = torch.tensor([0x00, 0x7C], dtype=torch.uint8)
    source = with_tensors(
        exported(repository, "2", tmp_path / "export"), lambda tensors: tensors[name][0, :2].copy_(infinite)
    )
    refused(tmp_path / "nan", source, f"{name} has a scale that is no number")
    part = with_tensors(source, lambda tensors: tensors.update({name: tensors[name][:, :-1].contiguous()}))
    refused(tmp_path / "part", part, f"{name} is no matrix of whole blocks")
