"""A record holds the findings of a load through the library about one version, so that the next load needs no library.

It lies beside the repository and serves the same version on this host. Importing the library takes longer than mapping
the weights. A record saves reading and running the library's model, but not the proof: it holds the library's logits
for the probe, and every load checks its forward against them. Without a record, or with one that does not fit, the
library is loaded and a new record is written.
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
from service.runner.loading.blueprint import Outline
from service.runner.loading.probe import CUTS, Reference
from service.runner.native.library import library


class Record(msgspec.Struct, frozen=True):
    """One record. `conditions` hold everything that the rest depends on besides the version's files. `logits` are fp32
    [3, vocabulary] in this host's byte order."""

    conditions: tuple[str, ...]
    outline: Outline
    token_ids: tuple[int, ...]
    logits: bytes
    spread: float

    @property
    def reference(self) -> Reference:
        """Returns the reference for the probe. Raises ValueError for logits of another size."""
        logits = torch.frombuffer(bytearray(self.logits), dtype=torch.float32).view(len(CUTS) - 1, -1)
        devices = (torch.device("cpu"),) * len(self.outline.shapes)
        return Reference(self.token_ids, logits, self.outline.shapes, devices, spread=self.spread)


def read(config: EngineConfig) -> Record | None:
    """Returns the record of the version that `config` loads, made under the same conditions, or None."""
    try:
        record = msgspec.msgpack.decode(Path(config.record).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    return record if record.conditions == _conditions(config) else None


def write(config: EngineConfig, outline: Outline, reference: Reference) -> None:
    """Writes a record by one rename, without a lock. Two engines that write at once may leave a torn record, which is
    made again. If the folder cannot be written, only the next load takes longer."""
    if not config.record:
        return
    record = Record(
        _conditions(config), outline, reference.token_ids, reference.logits.numpy().tobytes(), reference.spread
    )
    path = Path(config.record)
    with suppress(OSError):
        durable.make_directory(path.parent)
        durable.replace(path, msgspec.msgpack.encode(record))


def _conditions(config: EngineConfig) -> tuple[str, ...]:
    kernels = library()
    level = "none" if kernels is None else kernels.level
    packages = (f"dosirak {__version__}", *(f"{name} {version(name)}" for name in ("torch", "transformers")))
    return (config.precision, config.dtype, config.kv_cache_dtype, str(config.max_model_len), level, *packages)
