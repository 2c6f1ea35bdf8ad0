"""An embedding request wants one vector of its prompt. This module says how, and makes it of the engine's bytes.

    hidden states ─▶ pooled (engine) ─▶ the first `dimensions` numbers ─▶ length 1, if normalized

It knows numbers; no engine, no HTTP.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

from models.checkpoint.pooling import VersionPooling
from service.engine.protocol.messages import Pooling


@dataclass(frozen=True, slots=True)
class Embedding:
    """How a prompt becomes a vector. `pooling` and `normalize` None are the version's own. `dimensions` are the first
    numbers to keep. With `fits` a longer prompt than the window is cut to the window, at its end."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    fits: bool = False

    def kind(self, version: VersionPooling) -> Pooling:
        return self.pooling or Pooling(version.kind)

    def normalizes(self, version: VersionPooling) -> bool:
        return version.normalize if self.normalize is None else self.normalize

    def vector(self, pooled: bytes, version: VersionPooling) -> array[float]:
        """Returns the vector in fp32. A vector of zeros has no direction, so it stays as it is."""
        numbers = array("f", pooled)[: self.dimensions]
        length = math.hypot(*numbers) if self.normalizes(version) else 0.0
        return array("f", (each / length for each in numbers)) if length else numbers
