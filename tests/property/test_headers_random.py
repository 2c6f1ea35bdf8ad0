"""Headers of weights' files with random damage: what our check takes, the library reads, and as the same tensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from safetensors import SafetensorError, safe_open

from models.checkpoint.safetensors_file import read_header
from models.errors import InvalidSource
from tests.effort import drawn

PIECES = (
    b"0", b"-1", b"1e9", b'"', b"[", b"]", b"{", b"}", b",", b":", b"null", b"true", b"9223372036854775808", b"\\u0000",
    b"\xff", b"\\ud800", b'"a"', b"F64", b" ", b"16",
)  # fmt: skip
DATA = bytes(23)
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    "c": {"dtype": "U8", "shape": [], "data_offsets": [22, 23]},
}


def damaged(draw: Random) -> bytes:
    header = bytearray(json.dumps(HEADER).encode())
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(header))
        match draw.randrange(3):
            case 0:
                header[at] = draw.randrange(256)
            case 1:
                header[at:at] = draw.choice(PIECES)
            case _:
                del header[at : at + draw.randint(1, 8)]
    length = len(header) if draw.random() < 0.9 else draw.getrandbits(draw.choice((8, 16, 64)))
    return struct.pack("<Q", length) + header + DATA


def test_what_is_taken_the_library_reads_as_the_same(tmp_path: Path) -> None:
    draw, path, taken = Random(1), tmp_path / "x.safetensors", 0
    for _ in range(drawn(150, 50_000)):
        path.write_bytes(damaged(draw))
        try:
            ours = {each.name: each.shape for each in read_header(path)}
        except InvalidSource:
            continue
        taken += 1
        assert ours == theirs(path), path.read_bytes()[:400]
    assert taken


def theirs(path: Path) -> dict[str, tuple[int, ...]] | str:
    try:
        with safe_open(path, "pt") as opened:
            file: Any = opened
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        return str(error)
