"""Of a checkpoint that also reads images or sounds, the tensors of the part for text are kept, under that part's names.

language_model.model.layers.0.…   model.language_model.layers.0.…   model.text_model.layers.0.…   → model.layers.0.…
language_model.lm_head.weight     lm_head.weight                                                  → lm_head.weight
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from models.checkpoint.safetensors_file import INDEX, WEIGHTS, read_header
from models.errors import InvalidSource

_PART: Final = re.compile(r"(?:model\.)?(?:language_model|text_model)\.(?:(lm_head)\.|model\.)?|(lm_head)\.")


def keep(directory: Path, dtype: str) -> dict[str, str]:
    """Rewrites the weights in `directory`, floating ones as `dtype`. Returns the sha256 of the files by name. Raises
    InvalidSource where no tensor is of the part for text."""
    from models.weights.conversion import rewrite, write_index

    hashes: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        names = {tensor.name: _own_name(tensor.name) for tensor in read_header(path)}
        of_text = {name: own for name, own in names.items() if own}
        if of_text:
            kept = path.with_name(path.name + ".kept")
            hashes[path.name] = rewrite(path, kept, dtype, of_text, of_text.__contains__)
            kept.replace(path)
        else:
            path.unlink()
    if not hashes:
        raise InvalidSource("The weights hold no tensor of the part for text (language_model): it is not served")
    (directory / INDEX).unlink(missing_ok=True)
    if list(hashes) != [WEIGHTS]:
        write_index(directory, {name: read_header(directory / name) for name in hashes})
    return hashes


def _own_name(name: str) -> str:
    """Returns the name of a tensor in the part for text; "" for a tensor of another part."""
    found = _PART.match(name)
    return f"{found[1] or found[2] or 'model'}.{name[found.end() :]}" if found else ""
