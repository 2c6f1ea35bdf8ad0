"""A target is the precision that a version is converted to. This module says which version may have which target; it
reads no weights."""

from __future__ import annotations

from models.errors import Conflict, InvalidSource
from models.manifest import QUANTIZED, Manifest, Precision


def require_target(parent: Manifest, target: Precision, group_size: int | None) -> None:
    """Raises Conflict where the parent cannot become a version of the `target` precision, and InvalidSource for a
    `group_size` of a precision without groups."""
    if parent.has_adapter:
        raise Conflict(
            f"{parent.reference} has an adapter: quantize its base, {parent.lineage.parent}, then import the adapter "
            "with that as adapter_of"
        )
    if target not in QUANTIZED or parent.precision in QUANTIZED:
        raise Conflict(
            f"{parent.reference} is {parent.precision} and cannot become {target}; 8-bit and 4-bit versions are "
            "made from bf16"
        )
    if target == "file":
        raise Conflict("A file version is made of a GGUF file, by its import: dosirak model import FILE.gguf NAME")
    if group_size is not None and target != "int4":
        raise InvalidSource(f"{target} has no groups; leave group_size out, or choose int4")
