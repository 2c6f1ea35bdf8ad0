"""8-bit and 4-bit precisions on a model with outlier columns: what each keeps, and that rows stay alone in a crowd.

The demo model with three columns of its hidden state made 25 times larger, and their weights as much smaller: in exact
arithmetic the same function, with codes of 8 bits a much coarser one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.offline import load, run_all
from service.evaluation.predictions import Predictions, predict
from service.evaluation.texts import calibration, dialogues
from service.settings import Settings
from service.text.tokenizer import Tokenizer
from tests.effort import usual
from tests.kernels import MAIN_KERNELS, TORCH, use

DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"
PLANTED = (3, 40, 77)
FACTOR = 25.0
PRECISIONS = ("int8", "int8-weight", "llm-int8", "int4")


def plant(directory: Path) -> Path:
    """The demo model, its inputs of attention and MLP with outlier columns."""
    shutil.copytree(DEMO, directory)
    weights = load_file(directory / "model.safetensors")
    columns = torch.tensor(PLANTED)
    for name, weight in weights.items():
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            weight[columns] *= FACTOR
        if name.endswith(tuple(f"{each}_proj.weight" for each in ("q", "k", "v", "gate", "up"))):
            weight[:, columns] /= FACTOR
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    directory = tmp_path_factory.mktemp("planted")
    repository = Repository(directory / "data")
    parent = import_source(repository, str(plant(directory / "planted")), "demo", version="bf16")
    for precision in PRECISIONS:
        quantize(repository, parent, precision, version=precision, calibrate=calibration)
    return repository


def settings(repository: Repository) -> Settings:
    return Settings(data_dir=repository.layout.data_dir, threads=1)


def predictions(repository: Repository) -> dict[str, Predictions]:
    found: dict[str, Predictions] = {}
    manifest = repository.get("demo", "bf16")
    texts = dialogues(Tokenizer.load(repository.path(manifest)), manifest.context_window, 4)
    parent = load(settings(repository), repository, manifest)
    for version in PRECISIONS:
        child = load(settings(repository), repository, repository.get("demo", version))
        found["bf16"], found[version] = predict([parent, child], texts)
    return found


@pytest.mark.parametrize("kernels", usual(MAIN_KERNELS, MAIN_KERNELS[0]))
def test_what_each_precision_loses(repository: Repository, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of AVX2's rows, which have 7 bits, more."""
    use(kernels, monkeypatch)
    found = predictions(repository)
    kl = {version: found[version].mean_kl for version in PRECISIONS}
    assert kl["llm-int8"] < kl["int8"] < (0.006 if kernels == "avx2" else 0.0025), kl
    assert kl["int8-weight"] < kl["int8"] / 2 and kl["int8"] < kl["int4"] / (2 if kernels == "avx2" else 4) < 0.01, kl
    assert min(found[version].agreement(found["bf16"]) for version in PRECISIONS) > 0.97


def test_outlier_columns_are_found_kept_and_reported(repository: Repository) -> None:
    manifest = repository.get("demo", "llm-int8")
    report = json.loads((repository.path(manifest) / "quantization.json").read_text())
    assert (report["method"], report["threshold"]) == ("llm-int8", 6.0) and report["calibration_tokens"] > 500
    weights = load_file(repository.path(manifest) / "model.safetensors")
    for name, layer in report["layers"].items():
        columns = weights.get(f"{name}.outlier_columns", torch.zeros(0, dtype=torch.int32))
        assert layer["outlier_columns"] == len(columns) <= 0.125 * weights[f"{name}.weight"].shape[1]
        if name.endswith(("q_proj", "gate_proj")):
            assert set(PLANTED) <= set(columns.tolist()), name
            assert not weights[f"{name}.weight"][:, columns.long()].any()
            assert weights[f"{name}.outlier_weight"].dtype is torch.bfloat16
    assert "outlier columns" in manifest.lineage.recipe


def test_int8_and_int8_weight_share_their_files(repository: Repository) -> None:
    first, second = repository.get("demo", "int8"), repository.get("demo", "int8-weight")
    assert first.files == second.files and first.digest != second.digest


@pytest.mark.parametrize("kernels", usual(MAIN_KERNELS, MAIN_KERNELS[0]))
@pytest.mark.parametrize("precision", ["int8-weight", "llm-int8", "int4"])
def test_alone_or_in_a_crowd(
    repository: Repository, precision: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kernels, monkeypatch)
    loaded = load(settings(repository), repository, repository.get("demo", precision))
    draw = torch.Generator().manual_seed(1)
    lengths = (1, 7, 33, 120, 250)
    asked = [
        Request(
            str(at),
            tuple(torch.randint(3, 3000, (length,), generator=draw).tolist()),
            SamplingParams(max_tokens=12, logprobs=1),
            arrival=at,
        )
        for at, length in enumerate(lengths)
    ]
    together = run_all(loaded.core(), asked)
    for request in asked:
        alone = run_all(loaded.core(speculation=False), [request])[request.id]
        crowd = together[request.id]
        assert [o.token_ids for o in alone] == [o.token_ids for o in crowd]
        assert [o.logprobs for o in alone] == [o.logprobs for o in crowd]


@pytest.mark.skipif(MAIN_KERNELS[0] == TORCH, reason="no kernels here")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_outlier_columns_do_not_take_the_decoder_away(repository: Repository, precision: str) -> None:
    """They leave few codes to the other columns: each rounding moves the logits far, the library's own as well."""
    assert load(settings(repository), repository, repository.get("demo", precision)).info.forward == "decoder"
