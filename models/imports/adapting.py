"""This module makes one version of an adapter and its parent: all files of the parent and the adapter's two.

The new version needs neither of them. It shares the parent's files on disk (see `repository.disk.blobs`), so only the
adapter's files take space.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint import config_policy
from models.checkpoint.decoder_start import decoder_start
from models.checkpoint.safetensors_file import read_header
from models.errors import Conflict, InvalidSource, NotFound
from models.imports.sources import Source
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, QUANTIZED, Manifest
from models.progress import Progress, silent
from models.repository.repository import Repository
from models.weights import adapters

if TYPE_CHECKING:
    from models.weights.skeleton import Skeleton

_PEFT = "peft_adapter.safetensors"  # as it came, beside what a version keeps of it


def publish_adapter(
    repository: Repository,
    source: Source,
    parent: Manifest,
    name: str,
    version: str | None = None,
    author: str = "",
    progress: Progress = silent,
) -> Manifest:
    """Check PEFT's adapter in `source` against `parent` and publish both as one version. Raises InvalidSource, Corrupt
    for a parent that is not as published, Conflict for one that cannot have an adapter."""
    from models.weights import skeleton
    from models.weights.conversion import rewrite

    if parent.has_adapter:
        raise Conflict(f"{parent.reference} has an adapter already; name its base, {parent.lineage.parent}")
    if decoder_start(repository.path(parent)):
        raise Conflict(f"{parent.reference} is an encoder-decoder model: merge the adapter and import the whole model")
    progress(0.0, f"reading {parent.reference}")
    with repository.lease(parent), repository.stage() as staged, repository.stage() as aside:
        repository.verify(parent)
        progress(0.5, "checking the adapter")
        source.refuse_code()
        with source.open(ADAPTER_CONFIG) as stream:
            config = config_policy.parse_json(stream.read(config_policy.MAX_JSON_BYTES + 1), ADAPTER_CONFIG)
        source.copy(_weights_of(source), aside / _PEFT)
        base = skeleton.build(repository.path(parent))
        checked = adapters.check(config, read_header(aside / _PEFT), base)
        dtype = "F32" if parent.precision == "fp32" else "BF16"
        for name, weight in checked.copies.items():
            _require_same(aside / _PEFT, name, repository, parent, base, weight)
        known = {file.path: file.sha256 for file in parent.files}
        known[ADAPTER_WEIGHTS] = rewrite(
            aside / _PEFT, staged / ADAPTER_WEIGHTS, dtype, checked.names, checked.names.__contains__
        )
        (staged / ADAPTER_CONFIG).write_text(adapters.as_text(checked.modules))
        progress(0.8, "publishing")
        for file in parent.files:
            _link(repository.path(parent) / file.path, staged / file.path)
        facts = parent.derived(checked.recipe, author)  # all that determines its digest is the parent's
        lineage = replace(facts.lineage, source=source.description)
        return repository.publish(staged, replace(facts, lineage=lineage), name, version, known)


def _require_same(
    file: Path, name: str, repository: Repository, parent: Manifest, base: "Skeleton", weight: str
) -> None:
    """PEFT saves embedding and head again beside an adapter on one of them. Raises InvalidSource where they are not the
    base's own: they were trained too, or tokens were added."""
    import torch

    from models.weights.conversion import read
    from models.weights.loading import DTYPES, MappedWeights

    dtype = DTYPES["fp32" if parent.precision == "fp32" else "bf16"]
    try:
        while parent.precision in QUANTIZED and parent.lineage.parent is not None:
            parent = repository.resolve(parent.lineage.parent)
        own = MappedWeights(repository.path(parent), dtype, parent.precision).tensor(base.tied.get(weight, weight))
    except (KeyError, NotFound):  # of a quantized parent whose own parent is gone, say
        own = None
    if own is None or not torch.equal(read(file, name).to(dtype), own):
        raise InvalidSource(
            f"{ADAPTER_WEIGHTS} holds {name}, which is not the weight of {parent.reference}: save the adapter with "
            "save_embedding_layers=False, or merge it and import the whole model if that layer was trained too"
        )


def _weights_of(source: Source) -> str:
    if ADAPTER_WEIGHTS not in source.files():
        raise InvalidSource(f"{ADAPTER_WEIGHTS} is missing; give the directory that PEFT's save_pretrained wrote")
    return ADAPTER_WEIGHTS


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # another file system, or too many links
        shutil.copyfile(path, target)
