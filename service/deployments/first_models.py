"""This module publishes the first models where instances share records or versions: as `models.imports.starter`, by the
settings of the environment. `python -m service.deployments.first_models DATA_DIR [REFERENCE=DIRECTORY …]`."""

from __future__ import annotations

import sys
from pathlib import Path

from models.errors import RepositoryError
from models.imports.starter import publish, why
from service.settings import Settings
from service.storage.records import open_repository


def main(data_dir: str, *pairs: str) -> None:
    publish(open_repository(Settings(data_dir=Path(data_dir))), *pairs)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (RepositoryError, OSError) as failure:
        sys.exit(why(failure))
