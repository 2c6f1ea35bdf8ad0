"""The memory that a report takes, by arithmetic: a version and its baseline are loaded side by side, in one process."""

from __future__ import annotations

from typing import Final

from models.manifest import Manifest

_PROCESS_BYTES: Final = 768 << 20
"""What the process takes beside the weights: libraries, a step's logits, KV cache in use."""


def needed_bytes(manifest: Manifest, baseline: Manifest | None) -> int:
    """Returns the free memory that measuring a version beside its baseline needs."""
    return manifest.size + (baseline.size if baseline else 0) + _PROCESS_BYTES
