"""The needs are shown before a download, and a machine that has less refuses it with the numbers."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from models.errors import InvalidSource
from service.deployments.needs import API_BYTES, Needs
from service.host import available_memory


@dataclass(frozen=True, slots=True)
class Room:
    """What the machine has free, in bytes. `gpu` is None where the processor serves."""

    disk: int
    memory: int
    gpu: int | None = None

    @classmethod
    def of(cls, data_dir: Path, gpu: int | None) -> Room:
        return cls(shutil.disk_usage(data_dir).free, available_memory(), gpu)

    @property
    def serving(self) -> int:
        return self.memory if self.gpu is None else self.gpu


def needs_from(result: dict[str, Any]) -> Needs:
    """Returns the needs that a `needs` job found."""
    return Needs(**{field.name: result[field.name] for field in fields(Needs)})


def show(console: Console, title: str, needs: Needs, to_come: int, room: Room) -> None:
    """Shows what a checkpoint needs, of which `to_come` bytes are still to be downloaded."""
    cache = f", and up to {size(needs.kv_cache)} of KV cache as chats fill it" if needs.kv_cache else ""
    rows = {
        "to download": size(to_come),
        "disk": f"{size(needs.disk)}, of which {size(needs.kept)} stay; {size(room.disk)} are free",
        "memory to convert": f"{size(needs.converting)}; {size(room.memory)} are free",
        "memory to serve": f"{size(needs.loading + API_BYTES)}{cache}; {size(room.serving)} are free",
    }
    lines = [f"{title}: {needs.parameters / 1e6:,.1f} M parameters, window {needs.context_window:,} tokens"]
    lines += [f"  {name:<18}{amount}" for name, amount in rows.items()]
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def refuse(name: str, needs: Needs, arrived: int, room: Room) -> None:
    """Raises InvalidSource with the numbers where the machine has less than is needed. `arrived` bytes of the download
    are on its disk already."""
    disk = needs.disk - arrived
    if disk > room.disk:
        raise InvalidSource(
            f"{name} needs {size(disk)} more on the data directory's disk and {size(room.disk)} are free: free some, "
            "or set DOSIRAK_DATA_DIR to a larger disk"
        )
    if needs.converting > room.memory:
        raise InvalidSource(
            f"{name} needs {size(needs.converting)} of memory to be converted and {size(room.memory)} are free: end "
            "other programs, or convert it on a larger machine and bring it with dosirak model export"
        )
    if (serving := needs.loading + API_BYTES) > room.serving:
        raise InvalidSource(
            f"{name} needs {size(serving)} of memory to be served and {size(room.serving)} are free: choose a "
            "smaller model, or another --precision (int8 needs the least)"
        )


def size(bytes: int) -> str:
    return decimal(bytes)
