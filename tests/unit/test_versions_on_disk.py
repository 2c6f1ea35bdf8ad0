"""Files of versions: the order of versions, the dtypes of their modules, and values that are made of a file once."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.manifest import Layer
from models.repository.disk import durable
from models.repository.disk.journal import timestamp
from models.repository.disk.remembered import Remembered
from models.repository.layers import fold, module_dtypes
from models.repository.repository import Repository
from models.weights.quantize import quantize
from tests.checkpoints import save_llama
from tests.versions import FACTS, publish


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data", lock_timeout=5)


def read_manifests(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The manifests that are read from now on."""
    read, plain = list[Path](), Path.read_bytes

    def watched(path: Path) -> bytes:
        if path.name == "manifest.json":
            read.append(path)
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", watched)
    return read


def test_a_page_reads_the_manifests_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that has seen none of the 300 versions."""
    made = many_versions(Repository(tmp_path), 300)
    read = read_manifests(monkeypatch)
    fresh = Repository(tmp_path)
    first = list(islice(fresh.newest_first("demo"), 50))
    assert [each.version for each in first] == made[:-51:-1] and len(read) == 50
    last = first[-1]
    second = list(islice(fresh.newest_first("demo", (last.created_at, last.version)), 50))
    assert [each.version for each in second] == made[-51:-101:-1] and len(read) == 100
    assert fresh.resolve("demo").version == made[-1] and fresh.models() == ["demo"] and len(read) == 100
    fresh.delete("demo", made[-1])
    publish(fresh, "one more")
    assert len(read) == 100, "neither what is published nor what is deleted looks at the others"


def many_versions(repository: Repository, count: int) -> list[str]:
    """Publishes versions whose numbers are not in the order of their names; returns them, oldest first."""
    first = publish(repository, "weights")
    source, made = repository.path(first), [first.version]
    moment = datetime.fromisoformat(first.created_at)
    for number in range(2, count + 1):
        version = f"v{number * 7 % 997}" if number % 3 else str(number)
        created_at = timestamp(moment + timedelta(seconds=number))
        directory = source.parent / version
        directory.mkdir()
        for name in ("config.json", "model.safetensors", "model.yaml"):
            os.link(source / name, directory / name)
        manifest = replace(first, version=version, created_at=created_at)
        (directory / "manifest.json").write_text(manifest.to_json())
        made.append(version)
    assert [each.version for each in repository.versions("demo")] == made
    return made


@pytest.mark.parametrize("damage", ["gone", "torn", "garbage", "read-only", "a directory"])
def test_the_order_of_versions_needs_no_file_of_its_own(repository: Repository, tmp_path: Path, damage: str) -> None:
    """As after a crash, in a repository of an earlier release, or where nothing can be written."""
    made = [publish(repository, str(number), version=f"v{number * 7 % 10}").version for number in range(8)]
    lines = tmp_path / "data" / "published" / "demo"
    whole = lines.read_bytes()
    assert whole.count(b"\n") == 8
    if damage == "torn":
        lines.write_bytes(whole[:-9])
    elif damage == "garbage":
        lines.write_bytes(b"\x00\xff\n" + whole.replace(b"Z v", b"Z  v") + b"2026 v1\n")
    else:
        lines.unlink()
    if damage == "read-only":
        lines.parent.rmdir()
        lines.parent.write_text("in the way")
    elif damage == "a directory":
        lines.mkdir()
    fresh = Repository(tmp_path / "data")
    assert [each.version for each in fresh.versions("demo")] == made
    assert publish(fresh, "next").version == "1" and fresh.resolve("demo").version == "1"
    assert [each.version for each in Repository(tmp_path / "data").versions("demo")] == [*made, "1"]
    if lines.is_file():
        assert lines.read_bytes().endswith(b" 1\n")


PARTS = st.one_of(st.sampled_from(["layers", "q_proj", "head", "07", "x1", "²", ""]), st.integers(0, 12).map(str))
NAMES = st.lists(PARTS, min_size=1, max_size=5).map(".".join).filter(lambda name: name != "")
NUMBER = "(0|[1-9][0-9]*)"
RUN = f"{NUMBER}(-{NUMBER})?"
DTYPES = st.sampled_from(["I8", "BF16", "I8+BF16"])


def told(layers: tuple[Layer, ...], name: str) -> list[str]:
    """The dtypes of all patterns that `name` fits, read as the documentation says."""
    return [layer.dtype for layer in layers if _fits(layer.pattern.split("."), name.split("."))]


def _fits(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(map(_stands_for, pattern, parts))


def _stands_for(told: str, part: str) -> bool:
    if told == part or not re.fullmatch(NUMBER, part):
        return told == part
    runs = [run.split("-") for run in told.split(",")] if re.fullmatch(f"{RUN}(,{RUN})*", told) else []
    return told == "*" or any(int(run[0]) <= int(part) <= int(run[-1]) for run in runs)


@given(st.dictionaries(NAMES, DTYPES, max_size=40))
def test_folding_loses_nothing(dtypes: dict[str, str]) -> None:
    layers = fold(dtypes)
    assert list(layers) == sorted(set(layers))
    for name, dtype in dtypes.items():
        assert told(layers, name) == [dtype]
    for layer in layers:
        assert any(told((layer,), name) for name in dtypes), f"{layer} is of nothing"


def test_layers_that_agree_share_a_line() -> None:
    alike = {f"model.layers.{at}.{name}": "I8" for at in range(22) for name in ("q_proj", "up_proj")}
    assert fold(alike | {"lm_head": "BF16"}) == (
        Layer("lm_head", "BF16"),
        Layer("model.layers.*.q_proj", "I8"),
        Layer("model.layers.*.up_proj", "I8"),
    )


def test_numbers_are_listed_where_layers_differ() -> None:
    mixed = {f"h.{at}.mlp": "I8+BF16" if at in (0, 3, 4, 5, 11) else "I8" for at in range(12)}
    assert fold(mixed) == (Layer("h.0,3-5,11.mlp", "I8+BF16"), Layer("h.1-2,6-10.mlp", "I8"))
    experts = {f"h.{at}.experts.{expert}": "I8" if at else "BF16" for at in range(3) for expert in range(4)}
    assert fold(experts) == (Layer("h.0.experts.*", "BF16"), Layer("h.1-2.experts.*", "I8"))


def test_what_counts_as_a_module() -> None:
    linear = {"weight": "I8", "weight_scale": "F32", "bias": "BF16", "outlier_columns": "I32", "outlier_weight": "BF16"}
    tensors = {f"q.{name}": dtype for name, dtype in linear.items()} | {
        "norm.weight": "F32",
        "experts.gate_up_proj": "BF16",
        "a": "F16",
        "a.weight": "I8",
        "weight": "F32",
    }
    assert module_dtypes(tensors) == {
        "q": "I8+BF16",
        "norm": "F32",
        "experts.gate_up_proj": "BF16",
        "a": "F16",
        "a.weight": "I8",
        "weight": "F32",
    }


@pytest.mark.parametrize("precision", ["int8", "llm-int8"])
def test_published_with_every_version(tmp_path: Path, precision: str) -> None:
    repository = Repository(tmp_path / "data")
    parent = import_source(repository, str(save_llama(tmp_path / "source")), "demo")
    assert {layer.dtype for layer in parent.layers} == {"BF16"}
    assert Layer("model.layers.0.self_attn.q_proj", "BF16") in parent.layers
    assert repository.get("demo", parent.version).layers == parent.layers
    small = quantize(repository, parent, precision, calibrate=lambda directory, window: [[1, 2, 3]])
    stored = {layer.pattern: layer.dtype for layer in small.layers}
    assert stored["model.layers.0.self_attn.q_proj"].startswith("I8") and stored["lm_head"].startswith("I8")
    assert stored["model.norm"] == "BF16" and stored.get("model.embed_tokens", "BF16") == "BF16"


def test_a_file_without_a_sound_header_is_not_published(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    with repository.stage() as staged:
        (staged / "model.safetensors").write_text("no header")
        with pytest.raises(InvalidSource, match=r"model\.safetensors"):
            repository.publish(staged, FACTS, "demo")
    assert repository.versions("demo") == []


@pytest.fixture
def made() -> list[bytes]:
    return []


@pytest.fixture
def remembered(made: list[bytes]) -> Remembered[int]:
    def make(content: bytes) -> int:
        made.append(content)
        return int(content.split()[-1])

    return Remembered(make)


def test_it_is_made_once(tmp_path: Path, made: list[bytes], remembered: Remembered[int]) -> None:
    path = tmp_path / "number"
    path.write_bytes(b"1\n")
    assert [remembered.of(path) for _ in range(3)] == [1, 1, 1] and made == [b"1\n"]


def test_every_kind_of_change_is_seen(tmp_path: Path, remembered: Remembered[int]) -> None:
    path = tmp_path / "number"
    for number in (1, 2, 3):
        durable.append_line(path, b"%d" % number)
        os.utime(path, ns=(0, 0))
        assert remembered.of(path) == number, "another size"
    for number in (4, 5, 6):
        durable.replace(path, b"%d\n" % number)
        os.utime(path, ns=(0, 0))
        assert remembered.of(path) == number, "another file of the same size"
    before = path.stat()
    path.write_bytes(b"7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert remembered.of(path) == 7, "another time"


def test_what_cannot_be_made_is_not_remembered(tmp_path: Path, remembered: Remembered[int]) -> None:
    path = tmp_path / "number"
    with pytest.raises(FileNotFoundError):
        remembered.of(path)
    path.write_bytes(b"no number")
    with pytest.raises(ValueError, match="invalid literal"):
        remembered.of(path)
    path.write_bytes(b"8")
    assert remembered.of(path) == 8
    path.unlink()
    with pytest.raises(FileNotFoundError):
        remembered.of(path)
