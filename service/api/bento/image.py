"""The image says what `bentoml containerize` installs for a bento, how it compiles the native kernels, and which models
`models:` of a bento's build file put into it.

`requirements.txt` pins every package and holds no test tool. The compiler is among BentoML's base packages; it is named
here too, because the kernels need it even if those packages change."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import bentoml
import yaml
from bentoml.images import Image

REQUIREMENTS: Final = Path(__file__).parents[3] / "requirements.txt"
PYTHON: Final = "3.11"
NATIVE: Final = "service/engine/runner/native"
DATA: Final = "/home/bentoml/data"
"""DOSIRAK_DATA_DIR of the image (`bentofile.yaml`), owned by the user that it runs as: so is a volume mounted there."""


def image() -> Image | None:
    """Returns the image; None where this was installed as a package, because a bento is not built from one."""
    if not REQUIREMENTS.is_file():
        return None
    with _quietly():
        made = Image(python_version=PYTHON, lock_python_packages=False)
        return (
            made.system_packages("g++")
            .python_packages(*_lines(REQUIREMENTS.read_text()))
            .build_include(NATIVE)
            .run(f"python src/{NATIVE}/build.py --strict")
            .run(f"install -d -o bentoml -g bentoml {DATA}")
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Drops records of level info. BentoML logs that it adds system packages at every start of a server, although
    packages are only added when an image is built."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


DESCRIPTION: Final = "bento.yaml"
SOURCES: Final = Path(__file__).parents[3]
"""The bento's `src`, where this runs from a bento."""


def carried_models(sources: Path = SOURCES) -> dict[str, Path]:
    """Returns the directory of each model that is in the store, by reference; empty where `sources` are not a bento's.

    BentoML may take a version for another one whose name begins alike, so the found tag is compared with the named one.
    """
    description = sources.parent / DESCRIPTION
    if not description.is_file():
        return {}
    named = [str(each["tag"]) for each in yaml.safe_load(description.read_text()).get("models") or ()]
    carried = {}
    for reference in named:
        try:
            model = bentoml.models.get(reference)
        except bentoml.exceptions.NotFound:
            continue
        if str(model.tag) == reference:
            carried[reference] = Path(model.path)
    return carried
