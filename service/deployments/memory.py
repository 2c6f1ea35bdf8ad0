"""The memory that an engine takes, by arithmetic. Admission of a version at its load and `dosirak doctor` share it."""

from __future__ import annotations

from typing import Final

ENGINE_BYTES: Final = 256 << 20
"""An engine process without its weights: interpreter, libraries, the least KV cache."""


def loaded_bytes(file_bytes: int) -> int:
    """Returns the memory that an engine of a version with files of so many bytes adds to the memory in use."""
    return file_bytes + ENGINE_BYTES
