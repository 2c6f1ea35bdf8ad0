"""Findings are what a load through the library found out about one version, so that the next load needs no library.

They lie beside the repository and serve the same version on this host. Importing the library takes longer than mapping
the weights. Findings save reading and running the library's model, but not the proof: they hold the library's lesson
for the probe, and every load has its forward repeat that. Without findings, or with some that do not fit, the library
is loaded and new ones are written.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch

from models import __version__
from models.repository.disk import durable
from service.engine.protocol.config import EngineConfig
from service.engine.runner.forwards.blueprint import Outline
from service.engine.runner.loading.lesson import FAR, NEAR, Lesson
from service.engine.runner.loading.probe import Reference
from service.engine.runner.native.library import library


class Findings(msgspec.Struct, frozen=True):
    """`conditions` hold everything that the rest depends on besides the version's files. `rows` and
    `logits` are the lesson's fp32 numbers in this host's byte order."""

    conditions: tuple[str, ...]
    outline: Outline
    token_ids: tuple[int, ...]
    rows: bytes
    logits: bytes
    past: int
    bounds: tuple[float, ...]

    @property
    def reference(self) -> Reference:
        """Returns the reference for the probe. Raises ValueError for numbers that are no lesson of the outline."""
        layers, pieces = len(self.outline.layers), 2 if self.past else 1
        if len(self.bounds) != layers + 1:
            raise ValueError(f"{len(self.bounds)} bounds for {layers} layers and a head")
        count = NEAR + (FAR if self.past else 0)
        rows, logits = (torch.frombuffer(bytearray(each), dtype=torch.float32) for each in (self.rows, self.logits))
        lesson = Lesson(rows.view(layers + 1, count, -1), logits.view(pieces, -1), self.past, self.bounds)
        devices = (torch.device("cpu"),) * layers
        return Reference(self.token_ids, lesson.logits, self.outline.shapes, devices, lesson=lesson)


def read(config: EngineConfig) -> Findings | None:
    """Returns the findings about the version that `config` loads, made under the same conditions, or None."""
    try:
        found = msgspec.msgpack.decode(Path(config.findings).read_bytes(), type=Findings)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.conditions == _conditions(config) else None


def write(config: EngineConfig, outline: Outline, reference: Reference) -> None:
    """Writes findings with the reference's lesson by one rename, without a lock. Two engines that write at once may
    leave a torn file, which is made again. If the folder cannot be written, only the next load takes longer."""
    lesson = reference.lesson
    if not config.findings or lesson is None:
        return
    rows, logits = (each.numpy().tobytes() for each in (lesson.rows, lesson.logits))
    found = Findings(_conditions(config), outline, reference.token_ids, rows, logits, lesson.past, lesson.bounds)
    path = Path(config.findings)
    with suppress(OSError):
        durable.make_directory(path.parent)
        durable.replace(path, msgspec.msgpack.encode(found))


def _conditions(config: EngineConfig) -> tuple[str, ...]:
    kernels = library()
    level = "none" if kernels is None else kernels.level
    packages = (f"dosirak {__version__}", *(f"{name} {version(name)}" for name in ("torch", "transformers")))
    return (config.precision, config.dtype, config.kv_cache_dtype, str(config.max_model_len), level, *packages)
