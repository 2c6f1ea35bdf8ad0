"""Manifests survive a round trip, are strict, and have a digest of behaviour; references admit no other path."""

import hashlib
import json
from dataclasses import replace

import pytest

from models.errors import Corrupt, InvalidReference, InvalidSource
from models.manifest import File, Layer, Manifest, ModelReference, precision_of
from tests.versions import FACTS

FILES = (File("config.json", 2, "a" * 64), File("model.safetensors", 10, "b" * 64))
LAYERS = (Layer("lm_head", "BF16"), Layer("model.layers.*.mlp.up_proj", "I8"))
MANIFEST = Manifest.of(FACTS, ModelReference("demo", "1"), "2026-11-21T00:00:00.000000Z", FILES, LAYERS)


def test_round_trip() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert Manifest.from_json(MANIFEST.to_json().encode()) == MANIFEST


def test_digest_is_of_behaviour_alone() -> None:
    assert len(MANIFEST.digest) == 64
    assert MANIFEST.short_digest == MANIFEST.digest[:12]
    for same in ({"name": "other"}, {"version": "2"}, {"created_at": "x"}, {"license": "mit"}, {"layers": ()}):
        assert replace(MANIFEST, **same).digest == MANIFEST.digest


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "int8"},
        {"architecture": "GPT2LMHeadModel"},
        {"context_window": 4096},
        {"files": (FILES[0], replace(FILES[1], sha256="c" * 64))},
        {"files": FILES[:1]},
    ],
)
def test_digest_changes_with_behaviour(change: dict[str, object]) -> None:
    assert replace(MANIFEST, **change).digest != MANIFEST.digest  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["surprise"], 1, "manifest.surprise is unknown"),
        (["lineage", "surprise"], 1, "manifest.lineage.surprise is unknown"),
        (["vocab_size"], None, "manifest.vocab_size is missing"),
        (["files", 0, "sha256"], None, "manifest.files.sha256 is missing"),
        (["vocab_size"], "260", "manifest.vocab_size"),
        (["vocab_size"], True, "manifest.vocab_size"),
        (["parameters"], -1, "manifest.parameters"),
        (["precision"], "int3", "manifest.precision"),
        (["files", 0, "path"], "../config.json", "manifest.files"),
        (["files", 0, "sha256"], "A" * 64, "manifest.files"),
        (["files", 0, "path"], "zzz", "sorted"),
        (["files", 1, "path"], "config.json", "sorted"),
        (["lineage"], [], "manifest.lineage"),
        (["layers"], {}, "manifest.layers must be a list"),
        (["layers", 0, "dtype"], 8, "manifest.layers.dtype"),
        (["layers", 0, "pattern"], None, "manifest.layers.pattern is missing"),
        (["layers"], [], "manifest.checksum"),
        (["layers"], None, "manifest.checksum"),
        (["lineage", "tools"], "torch", "manifest.lineage.tools"),
        (["vocab_size"], 261, "manifest.digest"),
        (["digest"], "0" * 64, "manifest.digest"),
    ],
)
def test_strict_and_names_the_key(path: list[str | int], value: object, named: str) -> None:
    raw = json.loads(MANIFEST.to_json())
    *parents, last = path
    target = raw
    for step in parents:
        target = target[step]
    if value is None:
        del target[last]
    else:
        target[last] = value
    with pytest.raises(Corrupt, match=named):
        Manifest.from_json(json.dumps(raw))


def test_manifests_from_before_layers_were_told() -> None:
    """Their checksum is over what they say, and their digest the same as ever."""
    told = {key: value for key, value in json.loads(MANIFEST.to_json()).items() if key not in ("layers", "checksum")}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    told["checksum"] = hashlib.sha256(canonical.encode()).hexdigest()
    assert Manifest.from_json(json.dumps(told)) == replace(MANIFEST, layers=())
    assert told["digest"] == "d3ec07286f7343c49c707c158163d5868934872ad3cea2c96125bee806e308b7"
    told["license"] = "mit"
    with pytest.raises(Corrupt, match=r"manifest\.checksum"):
        Manifest.from_json(json.dumps(told))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\ud800"])
def test_no_manifest(text: str) -> None:
    with pytest.raises(Corrupt):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("demo", ModelReference("demo")),
        ("demo:1", ModelReference("demo", version="1")),
        ("demo@production", ModelReference("demo", alias="production")),
        ("a..b-c_d:1.0", ModelReference("a..b-c_d", version="1.0")),
        ("x" * 63, ModelReference("x" * 63)),
    ],
)
def test_reference(text: str, expected: ModelReference) -> None:
    assert ModelReference.parse(text) == expected
    assert str(expected) == text


TRAVERSAL = [
    "", ".", "..", "../x", "demo/../x", "/etc/passwd", "a/b", "a\\b", "%2e%2e", "%252e", "demo\0", "demo\n", " demo",
    "demo ", "Demo", "démo", "데모", "ｄｅｍｏ", "file://x", "x" * 64, "x" * 4096, "-demo", "_demo", ".demo", "demo.",
    "demo-", "con:", "demo:", "demo@", "demo:@", "demo:..", "demo@..", "demo:1@production", "demo:1:2", "demo@a@b",
    "demo:../1", "demo:1/..",
]  # fmt: skip


def test_refused_references() -> None:
    for text in TRAVERSAL:
        with pytest.raises(InvalidReference):
            print(ModelReference.parse(text), "is taken")


def test_precision() -> None:
    assert precision_of("int8") == "int8"
    with pytest.raises(InvalidSource, match="bf16"):
        precision_of("int7")
