"""The worker is the process that joins a recorded profile, `python -m service.observability.profiles.worker DIRECTORY`.

    stdout    the operators as a JSON list; exit 1 with the reason on standard error

It dies with the process that started it, and has a lower priority than serving. It leaves `trace.json.gz` in the
directory and removes the pieces.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from service.host import BACKGROUND_NICENESS, die_with_parent
from service.observability.profiles.trace import join

TRACE: Final = "trace.json.gz"


def main(argv: list[str]) -> int:
    die_with_parent()
    os.nice(BACKGROUND_NICENESS)
    directory = Path(argv[1])
    try:
        operators = join(directory, directory / TRACE)
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        print(error, file=sys.stderr)
        return 1
    finally:
        for path in directory.glob("piece-*"):
            path.unlink(missing_ok=True)
    sys.stdout.buffer.write(msgspec.json.encode(operators))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
