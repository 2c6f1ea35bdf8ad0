"""A second load of a version: by its record, without the library, and the same model to the last bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from service.engine.protocol.messages import SamplingParams
from service.engine.runner.loading import building
from service.engine.runner.loading.record import Record
from service.engine.runner.native.library import library
from tests.effort import usual
from tests.golden.conftest import Load
from tests.golden.test_architectures import OF_EXPERTS, OURS
from tests.golden.tiny import VOCABULARY, Answer, Loaded, answer, request

DENSE = [name for name in OURS if name not in OF_EXPERTS]  # see test_experts.py for the others
CASES = [
    *((name, "bf16") for name in OURS),
    *((name, "int8") for name in DENSE),
    ("llama", "fp32"),
    ("gpt_oss", "fp32"),
]
FEW = [("llama", "fp32"), ("gemma3_text", "int8"), ("phi3", "bf16"), ("qwen3_moe", "bf16"), ("gpt_oss", "fp32")]

pytestmark = pytest.mark.skipif(library() is None, reason="records serve the native kernels, which are not built")


def _answer(loaded: Loaded) -> Answer:
    prompt = [(7 * i + 3) % VOCABULARY for i in range(60)]
    params = SamplingParams(max_tokens=12, logprobs=2, prompt_logprobs=1)
    return answer(loaded.core(), {0: [request("a", prompt, params)]})["a"]


def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> building.Built:
        raise AssertionError("loaded through the library")

    monkeypatch.setattr(building, "_from_library", refuse)


@pytest.mark.parametrize(("name", "precision"), usual(CASES, *FEW))
def test_the_same_model_by_its_record(
    load: Load, name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, record = Path(load(name, precision).config.model_dir), tmp_path / "engine" / "r.record"
    first = Loaded.of(directory, precision, record=str(record))
    assert first.info.forward == "decoder"
    assert record.exists()
    _no_library(monkeypatch)
    again = Loaded.of(directory, precision, record=str(record))
    assert _answer(again) == _answer(first)
    same = ("forward", "kernels", "memory_bytes", "blocks_total", "kv_bytes_per_block")
    assert all(getattr(again.info, field) == getattr(first.info, field) for field in same)


def test_a_second_load_imports_no_transformers(load: Load, tmp_path: Path) -> None:
    directory, record = load("llama", "int8").config.model_dir, str(tmp_path / "r.record")
    Loaded.of(Path(directory), "int8", record=record)
    program = f"""
import sys
from service.engine.protocol.messages import EngineConfig
from service.engine.runner.loading.building import build_runner
fields = dict(max_model_len=400, max_num_seqs=16, threads=1, device="cpu", record={record!r})
runner, info = build_runner(EngineConfig(model_dir={directory!r}, precision="int8", **fields), lambda *_: None)
print(info.forward, "transformers" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["decoder", "False"]


def _damage(record: Record, how: str) -> bytes:
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
    first = Loaded.of(directory, "bf16", record=str(path))
    good = path.read_bytes()
    path.write_bytes(_damage(msgspec.msgpack.decode(good, type=Record), how))
    assert path.read_bytes() != good
    assert _answer(Loaded.of(directory, "bf16", record=str(path))) == _answer(first)
    assert path.read_bytes() == good


def test_a_folder_that_cannot_be_written_to(load: Load, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loaded = Loaded.of(Path(load("llama", "int8").config.model_dir), "int8", record=str(tmp_path / "file" / "r.record"))
    assert loaded.info.forward == "decoder"


def test_what_the_library_computes_has_no_record(load: Load, tmp_path: Path) -> None:
    Loaded.of(Path(load("gpt2", "bf16").config.model_dir), "bf16", record=str(tmp_path / "r.record"))
    assert not list(tmp_path.iterdir())
