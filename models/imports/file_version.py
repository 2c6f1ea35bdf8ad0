"""A `file` version holds the blocks of a GGUF file as they are, beside the rest of the bf16 version made from the file.

    <module>.weight_<type>  uint8  [out, bytes of a row], blocks of the file (`models.weights.blocks`); a matrix that is
                                   embedding and output head lies there once, as the head's
    everything else         bf16   embeddings, norms, biases, routers, as in the bf16 version

The files' metadata says `format: dosirak-blocks`: only `service.engine.runner` reads them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.checkpoint.block_types import stored_name
from models.checkpoint.config_policy import read_json
from models.checkpoint.safetensors_file import INDEX, Tensor, read_header
from models.errors import Conflict, InvalidSource
from models.imports import gguf_blocks
from models.manifest import Manifest
from models.progress import Progress, part, silent
from models.repository.repository import Repository

if TYPE_CHECKING:
    from models.imports.gguf_file import Unpacked
    from models.weights.blocks import BlockWeight
    from models.weights.skeleton import Skeleton

FORMAT: Final = "dosirak-blocks"
WAY_OUT: Final = "choose another precision, as int8"


def require_blocks(source: Unpacked | None) -> None:
    """Raises InvalidSource where the source is no GGUF file whose blocks are computed as they are."""
    if source is None:
        raise InvalidSource(f"The precision file is for quantized GGUF files, and the source is none: {WAY_OUT}")
    if source.no_blocks:
        raise InvalidSource(f"{source.path.name} is not computed as it is: {source.no_blocks}: {WAY_OUT}")


def publish_file(
    repository: Repository,
    parent: Manifest,
    path: Path,
    version: str | None = None,
    author: str = "",
    progress: Progress = silent,
) -> Manifest:
    """Publishes the blocks of the GGUF file `path`, of which `parent` is the bf16 version. The parent is read with a
    lease, and checked first. Raises NotFound and Corrupt for the parent, InvalidSource for a damaged file, Conflict for
    one that the parent was not made of."""
    from models.weights import skeleton
    from models.weights.conversion import bytes_of, read, write_shards

    progress(0.0, f"reading the blocks of {path.name}")
    with repository.lease(parent), repository.stage() as staged:
        repository.verify(parent)
        directory = repository.path(parent)
        blocks = gguf_blocks.block_weights(path, read_json(directory / "config.json"))
        planned = _planned(directory, skeleton.build(directory), blocks, parent.reference)

        def content(name: str) -> memoryview:
            item = planned[name]
            return bytes_of(read(item.file, name) if item.blocks is None else item.blocks.data)

        for each in parent.files:
            if not each.path.endswith(".safetensors") and each.path != INDEX:
                shutil.copyfile(directory / each.path, staged / each.path)
        tensors = [item.tensor for item in planned.values()]
        hashes = write_shards(staged, tensors, content, part(progress, 0.1, 1.0), FORMAT)
        types = Counter(item.blocks.type for item in planned.values() if item.blocks is not None)
        counted = ", ".join(f"{count} in {kind}" for kind, count in sorted(types.items()))
        recipe = f"linear weights in the blocks of the GGUF file: {counted}; the rest bf16"
        facts = parent.derived(recipe, author, precision="file")
        return repository.publish(staged, facts, parent.name, version, hashes)


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """A tensor to write: of `file`, or blocks."""

    tensor: Tensor
    file: Path
    blocks: BlockWeight | None


def _planned(
    directory: Path, model: Skeleton, blocks: Mapping[str, BlockWeight], reference: str
) -> dict[str, _Planned]:
    """Returns what to write by name: each linear layer in its blocks, all else as it is in `directory`."""
    heads = {embedding: head for head, embedding in model.tied.items()}
    plan: dict[str, _Planned] = {}
    for file in sorted(directory.glob("*.safetensors")):
        for tensor in read_header(file):
            name = model.canonical(tensor.name)
            layer, weight = heads.get(name, name), blocks.get(name.removesuffix(".weight"))
            if layer not in model.coded or weight is None:
                plan[tensor.name] = _Planned(tensor, file, None)
                continue
            if tuple(weight.shape) != tensor.shape:
                raise Conflict(f"{tensor.name} of {reference} is not of the shape that the GGUF file has")
            stored = stored_name(layer.removesuffix(".weight"), weight.type)
            plan[stored] = _Planned(Tensor(stored, "U8", tuple(weight.data.shape)), file, weight)
    return plan
