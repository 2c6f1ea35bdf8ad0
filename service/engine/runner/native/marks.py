"""Marks are the times at which the native decoder ended the phases of a step. They know no models and no trace.

The structure mirrors that of the same name in `src/model.h`, as PHASES mirrors its `Phase`.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int64, c_void_p
from typing import Final

PHASES: Final = (
    "",  # the begin of a step: no phase ends there
    "native::embedding",
    "native::qkv",
    "native::keys_and_values",
    "native::attention",
    "native::output",
    "native::gate_up",
    "native::down",
    "native::experts",
    "native::head",
)
ROOM: Final = 1 << 16
"""The most marks between two calls of `take`; a step of 80 layers with 2,048 rows has some 3,500."""


class MarksStruct(Structure):
    _fields_ = (("room", c_int64), ("count", c_int64), ("entries", c_void_p))


class Marks:
    """Room for the marks of some steps. One thread uses it."""

    def __init__(self) -> None:
        self._entries = (c_int64 * (2 * ROOM))()
        self.struct = MarksStruct(ROOM, 0, ctypes.addressof(self._entries))

    def take(self) -> bytes:
        """Returns the marks since the last call, as pairs of int64: the index of a phase, and nanoseconds since the
        epoch."""
        count, self.struct.count = self.struct.count, 0
        return bytes(memoryview(self._entries).cast("B")[: 16 * count])
