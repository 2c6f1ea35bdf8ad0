"""Room is what a disk has free. It is looked at before files arrive whose sizes are known."""

from __future__ import annotations

import shutil
from pathlib import Path

from models.errors import InvalidSource


def require_room(directory: Path, needed: int, what: str) -> None:
    """Raises InvalidSource with the numbers where the disk of `directory` has less than the `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise InvalidSource(
            f"{what} needs {needed / 1e6:,.1f} MB more on the data directory's disk and {free / 1e6:,.1f} MB are free: "
            "free some, or set DOSIRAK_DATA_DIR to a larger disk"
        )
