"""Heads that lie: each is refused with a sentence, before work or memory follows a number in it."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from models.checkpoint.config_policy import MAX_JSON_BYTES
from models.errors import InvalidSource
from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights import fit  # noqa: F401  # so that no case pays for the imports
from tests.checkpoints import save_llama

SECONDS: Final = 1.0
BYTES: Final = 200 << 20
Change = Callable[[Path], object]


def memory(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def refused(tmp_path: Path, source: Path, named: str) -> None:
    repository = Repository(tmp_path / "data")
    Path("/proc/self/clear_refs").write_text("5")
    before, begin = memory("VmRSS"), time.process_time()
    with pytest.raises(InvalidSource, match=named):
        import_source(repository, str(source), "demo")
    assert time.process_time() - begin < SECONDS
    assert memory("VmHWM") - before < BYTES
    assert repository.models() == []


def header(text: bytes, data: bytes = b"") -> Change:
    return lambda directory: (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensors(**entries: Any) -> Change:
    told = {name: {"dtype": "F32", "shape": shape, "data_offsets": place} for name, (shape, place) in entries.items()}
    return header(json.dumps(told).encode(), b"\0" * 16)


def config(**values: Any) -> Change:
    def change(directory: Path) -> None:
        told = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(told | values))

    return change


def index(text: str) -> Change:
    return lambda directory: (directory / "model.safetensors.index.json").write_text(text)


ONE: Final = b'"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
CHECKPOINTS: Final[dict[str, tuple[Change, str]]] = {
    "a dimension of 0": (tensors(a=([0, 4], [0, 0]), b=([4], [0, 16])), "lack|does not have"),
    "a product past 2^64": (tensors(a=([1 << 40, 1 << 40], [0, 16])), "do not fit its dtype"),
    "offsets past the end": (tensors(a=([1 << 30], [0, 4 << 30])), "covers"),
    "overlapping": (tensors(a=([4], [0, 16]), b=([2], [8, 16])), "an overlap"),
    "a header of 2^40": (lambda source: (source / "model.safetensors").write_bytes(b"\0\0\0\0\0\1\0\0{}"), "larger"),
    "a key twice": (header(b"{" + ONE + b"," + ONE + b"}", b"x"), "twice"),
    "16 MiB of objects": (header(b'{"a":[' + b"{}," * (5 << 20) + b"{}]}", b"x"), "values"),
    "16 MiB of numbers": (header(b'{"a":[' + b"0," * (7 << 20) + b"0]}", b"x"), "values"),
    "16 MiB of brackets": (header(b"[" * (15 << 20)), "values"),
    "a shard elsewhere": (index('{"weight_map": {"a": "../../etc/passwd"}}'), "names the shard"),
    "a shard of the root": (index('{"weight_map": {"a": "/etc/passwd"}}'), "names the shard"),
    "an index that says a tensor twice": (index('{"weight_map": {"a": "x", "a": "y"}}'), "twice"),
    "an index of 2^40": (index('{"weight_map": ' + "[" * (MAX_JSON_BYTES - 20)), "JSON|values"),
    "layers": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "layers past 2^64": (config(num_hidden_layers=10**30), "num_hidden_layers"),
    "heads": (config(num_attention_heads=10**9), "num_attention_heads|hidden_size"),
    "a width past 2^64": (config(hidden_size=1 << 70), "hidden_size"),
    "a width": (config(hidden_size=1 << 40), "hidden_size|has the shape"),
    "a vocabulary": (config(vocab_size=1 << 50), "vocab_size|has the shape"),
    "experts": (config(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=10**9), "experts"),
    "experts of layers": (
        config(
            model_type="qwen3_moe",
            architectures=["Qwen3MoeForCausalLM"],
            num_hidden_layers=1_000,
            num_experts=101,
            moe_intermediate_size=8,
        ),
        "1,000 as 'num_hidden_layers' and 101 as 'num_experts'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoints(tmp_path: Path, case: str) -> None:
    change, named = CHECKPOINTS[case]
    source = save_llama(tmp_path / "source")
    change(source)
    refused(tmp_path, source, named)


def head(pairs: bytes = b"", tensors: bytes = b"", n_pairs: int = 1, n_tensors: int = 1, version: int = 3) -> Change:
    known = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    begin = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + known + pairs
    return lambda path: path.write_bytes(begin + tensors + b"\0" * 4096)


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def number(key: bytes, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def array(of: int, count: int, content: bytes = b"") -> bytes:
    return text(b"llama.list") + struct.pack("<IIQ", 9, of, count) + content


def tensor(shape: list[int], offset: int = 0, kind: int = 0, name: bytes = b"a") -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


HEADS: Final[dict[str, tuple[Change, str]]] = {
    "nothing": (lambda path: path.write_bytes(b""), "does not begin with GGUF"),
    "only its mark": (lambda path: path.write_bytes(b"GGUF"), "can be read"),
    "another byte order": (head(version=3 << 24), "of version"),
    "2^40 tensors": (head(n_tensors=1 << 40), "tensors"),
    "2^40 values": (head(n_pairs=1 << 40), "values"),
    "an array of 2^40 numbers": (head(array(4, 1 << 40), n_pairs=2), "elements"),
    "an array of 2^40 texts": (head(array(8, 1 << 40), n_pairs=2), "elements"),
    "an array that goes past the end": (head(array(4, 1 << 20), n_pairs=2), "can be read"),
    "an array of arrays": (head(array(9, 1 << 20), n_pairs=2), "an array of the type 9"),
    "a text of 2^60": (head(struct.pack("<Q", 1 << 60), n_pairs=2), "it has a text of 1,152"),
    "a key twice": (head(number(b"a", 1) * 2, n_pairs=3), "the key 'a' twice"),
    "a key that is no text": (head(number(b"\xff", 1), n_pairs=2), "can be read"),
    "an alignment of 0": (head(number(b"general.alignment", 0), tensor([4]), n_pairs=2), "power of two"),
    "an alignment of 3": (head(number(b"general.alignment", 3), tensor([4]), n_pairs=2), "power of two"),
    "an alignment that is a text": (
        head(text(b"general.alignment") + struct.pack("<I", 8) + text(b"32"), tensor([4]), n_pairs=2), "power of two",
    ),
    "a dimension of 0": (head(tensors=tensor([0, 4])), r"has the sizes \[4, 0\]"),
    "a product past 2^64": (head(tensors=tensor([1 << 40, 1 << 40])), "ends behind the file"),
    "no dimension": (head(tensors=tensor([])), "has 0 dimensions"),
    "2^31 dimensions": (head(tensors=text(b"a") + struct.pack("<I", 1 << 31)), "dimensions"),
    "a row of part of a block": (head(tensors=tensor([33], kind=8)), "Q8_0 has no blocks"),
    "a place past the end": (head(tensors=tensor([1 << 20])), "ends behind the file"),
    "overlapping": (head(tensors=tensor([64]) + tensor([4], 32, name=b"b"), n_tensors=2), "and should at"),
    "a tensor twice": (head(tensors=tensor([4]) + tensor([4], 32), n_tensors=2), "tensor a twice"),
    "a type of tomorrow": (head(tensors=tensor([4], kind=99)), "ggml's type 99"),
    "a type of no weights": (head(tensors=tensor([4], kind=24)), "ggml's type I8"),
    "10^9 blocks": (head(number(b"llama.block_count", 10**9), tensor([4]), n_pairs=2), "1,000,000,000 blocks"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADS)
def test_gguf_heads(tmp_path: Path, case: str) -> None:
    change, named = HEADS[case]
    change(tmp_path / "model.gguf")
    refused(tmp_path, tmp_path / "model.gguf", named)
