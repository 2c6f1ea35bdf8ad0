"""A record keeps what a load through the library found out about a version, beside the repository, so that the next
load of the same version on this host needs no library: importing the library takes longer than mapping the weights.

A record saves reading and running the library's model; it does not save the proof. It holds the library's logits for
the probe, and every load checks its forward against them. Without a record, or with one that does not fit, nothing is
lost: the library is loaded, and a record is written anew.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch

from models import __version__
from models.storage import durable
from service.engine.messages import EngineConfig
from service.runner.blueprint import Outline
from service.runner.native.library import library
from service.runner.probe import CUTS, Reference


class Record(msgspec.Struct, frozen=True):
    """`conditions` are all that the rest depends on besides the version's files; `logits` are fp32 [3, vocabulary] in
    this host's byte order."""

    conditions: tuple[str, ...]
    outline: Outline
    token_ids: tuple[int, ...]
    logits: bytes

    @property
    def reference(self) -> Reference:
        """Raises ValueError for logits of another size."""
        logits = torch.frombuffer(bytearray(self.logits), dtype=torch.float32).view(len(CUTS) - 1, -1)
        return Reference(self.token_ids, logits, self.outline.shapes)


def read(config: EngineConfig) -> Record | None:
    """The record of the version that `config` loads, made under the same conditions; None when there is none."""
    try:
        record = msgspec.msgpack.decode(Path(config.record).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    return record if record.conditions == _conditions(config) else None


def write(config: EngineConfig, outline: Outline, reference: Reference) -> None:
    """In one rename, without a lock: two engines that write at once may leave a torn record, which is made anew. A
    folder that cannot be written to costs the next load its time and nothing else."""
    if not config.record:
        return
    record = Record(_conditions(config), outline, reference.token_ids, reference.logits.numpy().tobytes())
    path = Path(config.record)
    with suppress(OSError):
        durable.make_directory(path.parent)
        durable.replace(path, msgspec.msgpack.encode(record))


def _conditions(config: EngineConfig) -> tuple[str, ...]:
    kernels = library()
    level = "none" if kernels is None else kernels.level
    packages = (f"dosirak {__version__}", *(f"{name} {version(name)}" for name in ("torch", "transformers")))
    return (config.precision, config.dtype, config.kv_cache_dtype, str(config.max_model_len), level, *packages)
