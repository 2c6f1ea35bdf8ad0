"""How often random tests draw: `make nightly` sets THOROUGH and draws more than `make test`."""

from __future__ import annotations

import os
from typing import Final

IS_THOROUGH: Final = bool(os.environ.get("THOROUGH"))


def drawn(usual: int, thorough: int) -> int:
    """Returns how many rounds or examples a test runs."""
    return thorough if IS_THOROUGH else usual
