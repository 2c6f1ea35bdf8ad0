"""A carried model is one that `models:` of a bento's build file names; this module finds it in BentoML's store.

`bentoml containerize` puts such models into the image. BentoML points its store there when it loads the bento. This
module knows no repository and no weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import bentoml
import yaml

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
    found = {}
    for reference in named:
        try:
            model = bentoml.models.get(reference)
        except bentoml.exceptions.NotFound:
            continue
        if str(model.tag) == reference:
            found[reference] = Path(model.path)
    return found
