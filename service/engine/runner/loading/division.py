"""Division says which devices get the layers of a model that one device does not hold, and why a model cannot be
divided. It is arithmetic: the library (`device_map`) puts the layers there.

    DOSIRAK_DEVICES=cuda:0,cuda:1, one replica     | layers 0 .. 15 | layers 16 .. 31 |      each with its KV blocks
                                                     cuda:0           cuda:1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from models.manifest import QUANTIZED
from service.engine.protocol.config import EngineConfig
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.loading.model_work import weight_files

RESERVED_BYTES: Final = 1 << 30
"""Of each device, beside the weights: activations, the libraries' own, a little KV cache."""


def num_devices(config: EngineConfig, free: Sequence[int]) -> int:
    """Returns how many devices, from the first on, the version's layers go to; `free` are the bytes that each has.
    Raises CannotServe, which says what to do, where they do not hold it."""
    needed = sum(path.stat().st_size for path in weight_files(config.model_dir))
    if len(free) == 1 and needed <= free[0]:
        return 1
    count = next((n for n in range(1, len(free) + 1) if needed <= sum(free[:n]) - n * RESERVED_BYTES), 0)
    if count == 1:
        return 1
    names = ", ".join((config.device, *config.spare_devices)[: len(free)])
    lacking = f"the weights take {needed / 1e9:.1f} GB, and {names} have {sum(free) / 1e9:.1f} GB free"
    if not count:
        way = "name more devices in DOSIRAK_DEVICES" if len(free) > 1 else "name several devices in DOSIRAK_DEVICES"
        raise CannotServe(f'{lacking}: {way} and load it with "replicas": 1, or choose a smaller precision')
    if why := indivisible(config):
        raise CannotServe(f"the weights take {needed / 1e9:.1f} GB, more than {config.device} has free, and {why}")
    return count


def indivisible(config: EngineConfig) -> str:
    """Returns why layers cannot go to several devices, with what to do; "" if they can."""
    if config.precision in QUANTIZED:
        return f"{config.precision} versions are not divided: load the bf16 version, or use vLLM with tensor_parallel"
    if config.decoder_start:
        return "encoder-decoder models are not divided: choose a device that holds it"
    if config.adapters:
        return "versions with an adapter are not divided: use vLLM with tensor_parallel"
    return ""


def kv_room(free: Sequence[int], layer_bytes: Sequence[int], layer_devices: Sequence[int]) -> int:
    """Returns the free bytes as if all layers' blocks lay on one device that fills up with the first of these.
    `layer_bytes` are those of a block; `layer_devices` index into `free`."""
    total = sum(layer_bytes)
    room = []
    for device in sorted(set(layer_devices)):
        own = sum(size for size, at in zip(layer_bytes, layer_devices, strict=True) if at == device)
        room.append(free[device] * total // own)
    return min(room)
