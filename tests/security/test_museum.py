"""The museum has a hostile model for each published weakness of other servers' files and templates. Each is refused
by a sentence, nothing of it is left, and the process lives.

A case is named by the weakness, or by the one that it is a sibling of. What requests bring is in `public_reports`.
"""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pytest

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.imports.upkeep import sweep
from models.repository.repository import Repository
from service.evaluation.trial import try_chats
from tests.checkpoints import save_llama

Spoil = Callable[[Path], Path | None]
"""Makes a checkpoint hostile. Returns what is imported, where that is another file."""
LONGEST_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Exhibit:
    weakness: str
    there: str
    """What went wrong there."""
    spoil: Spoil
    said: str
    """What is said here, as an expression."""


def file(name: str, content: bytes | str = b"\x80\x04cos\nsystem\n.") -> Spoil:
    def spoil(directory: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (directory / name).write_bytes(data)

    return spoil


def document(name: str, **changes: object) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | changes))

    return spoil


def tokenizer(**changes: object) -> Spoil:
    return document("tokenizer.json", **changes)


def replaced(pattern: str, content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def split(expression: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def vocabulary(**changes: object) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / "tokenizer.json"
        content: Any = json.loads(path.read_text())
        content["model"] |= changes
        path.write_text(json.dumps(content))

    return spoil


def header(text: bytes, length: int | None = None, data: bytes = b"") -> Spoil:
    return file("model.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + data)


def shard(name: str) -> Spoil:
    return document("model.safetensors.index.json", weight_map={"model.norm.weight": name})


def gguf(*parts: bytes, tensors: int = 0, pairs: int = 1) -> Spoil:
    def spoil(directory: Path) -> Path:
        path = directory.parent / "model.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + b"".join(parts))
        return path

    return spoil


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def entry(name: bytes, kind: int, size: int = 0, content: bytes = b"") -> bytes:
    about = tarfile.TarInfo(name.decode())
    about.type, about.size = bytes([kind]), size
    return about.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def archive(*entries: bytes) -> Spoil:
    def spoil(directory: Path) -> Path:
        path = directory.parent / "model.tar"
        path.write_bytes(b"".join(entries) + b"\0" * 1024)
        return path

    return spoil


def linked(name: str) -> Spoil:
    """The file, or the directory that it lies in, leads to a file outside."""

    def spoil(directory: Path) -> None:
        outside, path = directory.parent / "outside", directory / name
        outside.mkdir()
        if path.exists():
            path.rename(outside / path.name)
            path.symlink_to(outside / path.name)
        else:
            (outside / path.name).write_text("{}")
            path.parent.symlink_to(outside)
            (directory / "modules.json").write_text(json.dumps(POOLED))

    return spoil


POOLED: Final = [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
SPARSE: Final = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PICKLE: Final = "can hold code and is refused"
CODE: Final = "which can make a loader run other code"


def exhibits() -> Iterable[Exhibit]:
    for weakness, name in (
        ("CVE-2025-32434", "pytorch_model.bin"),
        ("CVE-2025-24357", "model.pt"),
        ("CVE-2026-1839", "rng_state.pth"),
        ("CVE-2025-66448", "modeling_own.py"),
    ):
        yield Exhibit(weakness, f"code in {name} ran when it was loaded", file(name), PICKLE)
    for weakness, key, value in (
        ("CVE-2026-4372", "_attn_implementation_internal", "org/kernels"),
        ("CVE-2026-27893", "custom_pipelines", {"text": {"impl": "own.Own"}}),
    ):
        yield Exhibit(weakness, f"{key} named code to fetch", document("config.json", **{key: value}), CODE)
    yield Exhibit(
        "CVE-2026-22807",
        "auto_map of another file than config.json named code",
        document("generation_config.json", auto_map={"AutoModel": "own.Own"}),
        CODE,
    )
    for weakness, name in (
        ("CVE-2024-37032", "../outside/model.safetensors"),
        ("CVE-2023-1177", "/etc/passwd"),
        ("CVE-2024-1560", "%2e%2e/model.safetensors"),
    ):
        yield Exhibit(weakness, f"{name} led out of the directory", shard(name), "which is no safetensors file here")
    yield Exhibit("CVE-2026-27905", "a link led out of the directory", linked("config.json"), "symbolic link")
    yield Exhibit("CVE-2026-27905", "a directory was a link", linked("1_Pooling/config.json"), "symbolic link")
    sizes = {"vocab_size": 260, "d_model": 32, "num_layers": 1, "attention_heads": 2, "ffn_dim": 8}
    positions = {"model_type": "xglm", "architectures": ["XGLMForCausalLM"], "max_position_embeddings": 1 << 31}
    for there, told, said in (
        ("a billion layers were built", {"num_hidden_layers": 10**9}, "at most 1,000"),
        ("a matrix had 2^62 numbers", {"hidden_size": 1 << 31, "vocab_size": 1 << 31}, "no model can be built"),
        ("a table of positions took all memory", sizes | positions, "tables of 137 GB"),
    ):
        yield Exhibit("a config.json", there, document("config.json", **told), said)
    yield from archives()
    yield from weights()
    yield from tokenizers()
    yield from templates()


def archives() -> Iterable[Exhibit]:
    shown: tuple[tuple[str, str, str, tuple[bytes, ...]], ...] = (
        ("CVE-2025-4517", "a name led out", "in one directory", (entry(b"../config.json", 0x30),)),
        ("CVE-2025-4330", "a link led out", "only plain files", (entry(b"config.json", 0x32),)),
        ("CVE-2024-12718", "a device was made", "only plain files", (entry(b"config.json", 0x33),)),
        ("CVE-2025-8194", "a negative size made an endless loop", "header of -512", (entry(b"a", 0x30, -512),)),
        ("CVE-2024-12886", "a small file became a large one", "room for", (entry(b"a", 0x30, 1 << 50),)),
        ("CVE-2024-12886", "a header was read into memory", "header of 8,589", (entry(b"a", 0x78, 8**11 - 1),)),
        ("CVE-2024-12886", "headers had no end", "damaged", (entry(b"a", 0x78, 9, b"9 path=a\n"),) * 3000),
        ("CVE-2024-12886", "a map of holes had no end", "holes", (entry(b"a", 0x78, 44, SPARSE), entry(b"a", 0x30, 1))),
    )
    for weakness, there, said, entries in shown:
        yield Exhibit(weakness, there, archive(*entries), said)


def weights() -> Iterable[Exhibit]:
    one = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    many = b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % each for each in range(20_001))
    for there, spoil, said in (
        ("blanks were a header of 99 MB", header(b"{}".ljust(99 << 20)), "larger than 16 MiB"),
        ("a header was longer than its file", header(b"{}", 1 << 63), "larger than 16 MiB or than the file"),
        ("tensors without bytes took all memory", header(b"{" + many + b"}"), "lists 20,001 tensors"),
        ("a key came twice", header(b'{"a":' + one + b',"a":' + one + b"}", data=b"x"), "twice"),
        (
            "sizes had no end",
            header(b'{"a":' + one.replace(b"[1]", b"[4611686018427387904,4]") + b"}"),
            "do not fit",
        ),
    ):
        yield Exhibit("a safetensors header", there, spoil, said)
    key = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    for weakness, there, spoil, said in (
        ("CVE-2024-39720", "a file of four bytes ended the server", gguf(pairs=0), "no general.architecture"),
        ("CVE-2026-7482", "a tensor behind the file's end was read", gguf(
            key, text(b"a"), struct.pack("<IQIQ", 1, 1 << 40, 0, 0), tensors=1), "ends behind the file"),
        ("CVE-2025-53630", "sizes overflowed", gguf(
            key, text(b"a"), struct.pack("<I4QIQ", 4, *[1 << 62] * 4, 0, 0), tensors=1), "ends behind the file"),
        ("CVE-2025-49847", "a long token overflowed", gguf(
            text(b"tokenizer.ggml.tokens"), struct.pack("<IIQ", 9, 8, 1), text(b"a" * 20_000)), "text of 20,000"),
        ("CVE-2025-52566", "a length was read as a negative one", gguf(text(b"", 2**64 - 1)), "a text of"),
        ("CVE-2024-39720", "an array of billions was made", gguf(
            text(b"a"), struct.pack("<IIQ", 9, 4, 1 << 40)), "said to have"),
    ):  # fmt: skip
        yield Exhibit(weakness, there, spoil, said)


def tokenizers() -> Iterable[Exhibit]:
    growing = {"type": "Sequence", "normalizers": [replaced("a", "aa")] * 60}
    doubling = {"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 20}
    hostile = {"type": "Sequence", "pretokenizers": [split(r"(q+z?)+$"), BYTE_LEVEL]}
    cubic = {"type": "Sequence", "pretokenizers": [split(r"q*q*q*Z"), BYTE_LEVEL]}
    around = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 9,
        "pair": [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"],
        "special_tokens": {},
    }
    deep: dict[str, object] = replaced("a", "b")
    for _ in range(200):
        deep = {"type": "Sequence", "normalizers": [deep]}
    for weakness, there, spoil, said in (
        ("CVE-2025-1194", "an expression never ended over a text", tokenizer(pre_tokenizer=hostile), "fails on a text"),
        ("CVE-2025-1194", "an expression never ended over an answer", tokenizer(decoder={"type": "Sequence",
            "decoders": [{"type": "Fuse"}, {**replaced("", ""), "pattern": {"Regex": "(a+)+$"}}]}), "fails on a text"),
        ("CVE-2025-1194", "an expression was cubic", tokenizer(pre_tokenizer=cubic), "fails on a text|takes too long"),
        ("a tokenizer.json", "one character became 2^60", tokenizer(normalizer=growing), "in its normalizer"),
        ("a tokenizer.json", "one character became a million", tokenizer(
            normalizer=replaced("\u1234", "x" * 1_000_000)), "up to 1,000,000 characters"),
        ("a tokenizer.json", "each step doubled the text", tokenizer(pre_tokenizer=doubling), "in its pre_tokenizer"),
        ("a tokenizer.json", "a token of an answer had a million characters", tokenizer(
            decoder=replaced("a", "x" * 1_000_000)), "in its decoder"),
        ("a tokenizer.json", "every text was put nine times", tokenizer(post_processor=around), "makes 576 tokens"),
        ("a tokenizer.json", "steps were nested without end", tokenizer(normalizer=deep), "cannot be read"),
        ("a tokenizer.json", "a prefix was put before every character", vocabulary(
            continuing_subword_prefix="x" * 1_000), "continuing_subword_prefix"),
        ("a tokenizer.json", "a token was endless", tokenizer(added_tokens=[{
            "id": 256, "content": "a" * 5_000, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}]), "a token of 5,000 characters"),
    ):  # fmt: skip
        yield Exhibit(weakness, there, spoil, said)


def templates() -> Iterable[Exhibit]:
    nested = "{% for a in range(60000) %}{% for b in range(60000) %}{% endfor %}{% endfor %}"
    for weakness, there, source, said in (
        ("CVE-2025-61620", "a template wrote 200 MB", "{{ 'a' * 200000000 }}", "writes too much text"),
        ("CVE-2025-61620", "a template never ended", nested, "takes too long"),
        ("CVE-2025-61620", "a constant was computed early", "{{ 'a' | center(4000000000) }}", "too"),
        ("CVE-2025-61620", "an endless template was read", "{{ a }}" * 200_000, "more than 1 MiB"),
        ("CVE-2025-61620", "branches had no end", "{% if a %}" + "{% elif b %}" * 3000 + "{% endif %}",
            "does not compile"),
    ):  # fmt: skip
        yield Exhibit(weakness, there, file("chat_template.jinja", source), said)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("exhibit", tuple(exhibits()), ids=lambda each: f"{each.weakness}, {each.there}")
def test_a_hostile_model_is_refused_and_nothing_is_left(llama: Path, tmp_path: Path, exhibit: Exhibit) -> None:
    source, repository = shutil.copytree(llama, tmp_path / "source"), Repository(tmp_path / "data")
    offered, begun = exhibit.spoil(source) or source, perf_counter()
    with pytest.raises(InvalidSource, match=exhibit.said):
        import_source(repository, str(offered), "model", try_chats=try_chats)
    assert perf_counter() - begun < LONGEST_SECONDS
    assert repository.models() == []
    assert sweep(repository, older_than=0) == []
