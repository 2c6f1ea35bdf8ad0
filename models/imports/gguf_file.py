"""A GGUF file holds a whole model: sizes, tokenizer, chat template and weights in blocks, as llama.cpp reads them.

`unpack` writes it as the checkpoint that it was made of: config.json (`gguf_config`), the tokenizer's files
(`gguf_tokenizer`), and weights in bf16 (`gguf_weights`). What decides the model's meaning is written there, for
ARCHITECTURES only: the names of tensors, the sizes, the rotary positions. What is not known is refused, because a model
without it would answer, only worse.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.config_policy import as_text
from models.checkpoint.decoder_start import GENERATION
from models.checkpoint.gguf_parts import present_parts
from models.errors import InvalidSource
from models.imports import gguf_head
from models.imports.gguf_blocks import why_no_blocks
from models.imports.gguf_config import ARCHITECTURES, Metadata, config_json, generation_json
from models.imports.gguf_head import GgufTensor
from models.imports.gguf_tokenizer import stops, write_tokenizer
from models.imports.gguf_weights import named_weights, write_weights
from models.progress import Progress, silent
from models.repository.disk.staging import sha256_of

if TYPE_CHECKING:
    from models.weights.skeleton import Skeleton

SUFFIX: Final = ".gguf"
_LICENSE: Final = re.compile(r"[\w.+-]{1,64}")
_MALFORMED: Final = (ValueError, KeyError, IndexError, TypeError, struct.error, OverflowError, RecursionError)


def is_gguf(path: Path) -> bool:
    """Whether the path is a file that is called GGUF."""
    return path.suffix.lower() == SUFFIX and path.is_file()


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A GGUF file that was unpacked: `notes` for what is made of it, and why its blocks are not computed as they are
    ("" if they are)."""

    path: Path
    notes: tuple[str, ...]
    no_blocks: str


def unpack(path: Path, target: Path, progress: Progress = silent) -> Unpacked:
    """Writes the model of the file `path` into the empty directory `target`. An import notes its sha256 and the formats
    of its tensors. Raises InvalidSource for a file that is damaged, or of a model that is not served from GGUF."""
    with _readable(path):
        progress(0.0, f"reading {path.name}")
        metadata, tensors = _read(path)
        config = config_json(metadata, tensors)
        named = named_weights(tensors, config)
        config["eos_token_id"] = ends = stops(metadata.values, metadata.architecture, write_tokenizer(path, target))
        (target / "config.json").write_text(json.dumps(config, indent=2))
        if sampling := generation_json(metadata):
            (target / GENERATION).write_text(as_text(sampling))
        _write_card(metadata.values.get("general.license"), target)
        write_weights(named, config, metadata.architecture, target, progress)
    formats = sorted({tensor.type.name for tensor in tensors.values()})
    digests = ", ".join(sha256_of(each) for each in present_parts(path))
    notes = [f"from GGUF of sha256 {digests}", f"tensors in {', '.join(formats)}, dequantized"]
    if metadata.values.get("tokenizer.ggml.model") == "gpt2" and "tokenizer.ggml.pre" not in metadata.values:
        notes.append("the file does not say how text is split, so that llama.cpp's default is taken")
    if ends is None:
        notes.append("no token of the file ends an answer")
    return Unpacked(path, tuple(notes), why_no_blocks(metadata.architecture, tensors))


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Returns the config.json of the model in a GGUF file, and why its blocks are not computed as they are. Raises
    InvalidSource as `unpack` does."""
    with _readable(path):
        metadata, tensors = _read(path)
        return config_json(metadata, tensors), why_no_blocks(metadata.architecture, tensors)


def skeleton_of(path: Path) -> tuple[Skeleton, str]:
    """Returns the skeleton of the model in a GGUF file, and why its blocks are not computed as they are. Raises
    InvalidSource for a model that is not served from GGUF."""
    from models.weights.skeleton import build

    with TemporaryDirectory() as directory:
        config, no_blocks = read(path)
        Path(directory, "config.json").write_text(as_text(config))
        return replace(
            build(Path(directory)), file_bytes=sum(each.stat().st_size for each in present_parts(path))
        ), no_blocks


def _write_card(license: object, target: Path) -> None:
    """Writes a model card for the licence that a file names."""
    if isinstance(license, str) and _LICENSE.fullmatch(license):
        (target / "README.md").write_text(f"---\nlicense: {license}\n---\n")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever a damaged file raises is InvalidSource."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, _MALFORMED) and type(error) is not Exception:  # which tokenizers raises
            raise
        raise InvalidSource(f"{path.name} is no GGUF file that can be read: {str(error)[:200]}") from error


def _read(path: Path) -> tuple[Metadata, Mapping[str, GgufTensor]]:
    """Raises InvalidSource for a damaged head and for an architecture that is not served."""
    model = gguf_head.read(path)
    architecture = model.values.get("general.architecture")
    if architecture is None:
        raise InvalidSource(f"{path.name} has no general.architecture: fetch the file again")
    if architecture not in ARCHITECTURES:
        raise InvalidSource(
            f"{path.name} is of the architecture {str(architecture)[:40]!r}; from GGUF there are "
            f"{', '.join(ARCHITECTURES)}: import the safetensors checkpoint that it was made of"
        )
    return Metadata(model.values, architecture), model.tensors
