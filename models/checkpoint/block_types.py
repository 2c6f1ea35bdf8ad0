"""The types of a GGUF file's blocks that are computed as they are, and the names of tensors that hold such blocks.

`<module>.weight_<type>`, with the type in lower case: `model.layers.0.mlp.up_proj.weight_q4_1`.
"""

from __future__ import annotations

from typing import Final

TYPES: Final = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""By GGUF's names."""
_SUFFIX: Final = ".weight_"


def stored_name(module: str, kind: str) -> str:
    """Returns the name of the tensor that holds a module's blocks of a type."""
    return f"{module}{_SUFFIX}{kind.lower()}"


def type_of(name: str) -> tuple[str, str] | None:
    """Returns the module and the type of a stored tensor of blocks, by its name; None for other tensors."""
    module, found, kind = name.rpartition(_SUFFIX)
    return (module, kind.upper()) if found and kind.upper() in TYPES else None
