"""This module makes one version of an adapter and its parent: all files of the parent and the adapter's two. Where the
adapter cannot run beside its base, the version is the parent with the adapter merged into its weights.

The new version needs neither of them. What it has in common with the parent are the same files on disk (see
`repository.disk.blobs`), so only what differs takes space.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint import config_policy
from models.checkpoint.decoder_start import decoder_start
from models.checkpoint.safetensors_file import INDEX, read_header
from models.errors import Conflict, InvalidSource
from models.imports.sources import Source
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, QUANTIZED, Manifest
from models.progress import Progress, part, silent
from models.repository.lineage import ancestors
from models.repository.repository import Repository
from models.weights import adapters, peft_adapters

if TYPE_CHECKING:
    from models.weights.peft_adapters import Checked
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
    from models.weights.merging import merge

    if parent.has_adapter:
        raise Conflict(f"{parent.reference} has an adapter already; name its base, {parent.lineage.parent}")
    progress(0.0, f"reading {parent.reference}")
    with repository.lease(parent), repository.stage() as staged, repository.stage() as aside:
        repository.verify(parent)
        progress(0.4, "checking the adapter")
        source.refuse_code()
        with source.open(ADAPTER_CONFIG) as stream:
            config = config_policy.parse_json(stream.read(config_policy.MAX_JSON_BYTES + 1), ADAPTER_CONFIG)
        source.copy(_weights_of(source), aside / _PEFT)
        directory = repository.path(parent)
        base = skeleton.build(directory)
        checked = peft_adapters.check(config, read_header(aside / _PEFT), base)
        for weight, stored in checked.copies.items():
            _require_same(aside / _PEFT, stored, repository, parent, base, weight)
        apart = checked.apart or ("an adapter of an encoder-decoder model" if decoder_start(directory) else "")
        if apart:
            _require_weights(repository, parent, apart)
            known = merge(directory, aside / _PEFT, checked, base, staged, part(progress, 0.5, 0.8))
        else:
            known = _keep(parent, aside / _PEFT, checked, staged)
        progress(0.8, "publishing")
        _share(parent, directory, staged, without_weights=bool(apart))
        facts = parent.derived(checked.recipe, author)
        lineage = replace(facts.lineage, source=source.description)
        if apart:
            lineage = replace(lineage, recipe=f"{checked.recipe}; merged, as {apart} cannot run beside a base")
            facts = replace(facts, parameters=_checked_parameters(staged))
        return repository.publish(staged, replace(facts, lineage=lineage), name, version, known)


def _keep(parent: Manifest, adapter: Path, checked: "Checked", staged: Path) -> dict[str, str]:
    """Writes the adapter's two files. Returns the sha256 of the version's files that are known, by name."""
    from models.weights.conversion import rewrite

    dtype = "F32" if parent.precision == "fp32" else "BF16"
    digest = rewrite(adapter, staged / ADAPTER_WEIGHTS, dtype, checked.kept, checked.kept.__contains__)
    (staged / ADAPTER_CONFIG).write_text(adapters.as_text(checked.modules))
    return {file.path: file.sha256 for file in parent.files} | {ADAPTER_WEIGHTS: digest}


def _share(parent: Manifest, directory: Path, staged: Path, without_weights: bool) -> None:
    """Puts the parent's files beside those that `staged` has already."""
    for file in parent.files:
        is_weights = file.path.endswith(".safetensors") or file.path == INDEX
        if not (staged / file.path).exists() and not (without_weights and is_weights):
            _link(directory / file.path, staged / file.path)


def _checked_parameters(staged: Path) -> int:
    """Returns the number of weights of a merged version. Raises InvalidSource where its files are not its model's."""
    from models.weights import fit, skeleton

    model = skeleton.build(staged)
    fit.check_tensors(staged, model)
    return model.parameters


def _require_weights(repository: Repository, parent: Manifest, apart: str) -> None:
    """Raises InvalidSource where the parent's weights are codes, which nothing can be merged into."""
    if parent.precision in QUANTIZED:
        plain = _unquantized(repository, parent)
        instead = f"name {plain.reference}, which it was made of" if plain else "import its base in bf16 and name that"
        raise InvalidSource(
            f"{parent.reference} is {parent.precision}, and {apart} cannot run beside a base: {instead}, then quantize "
            "the merged version"
        )


def _unquantized(repository: Repository, version: Manifest) -> Manifest | None:
    """Returns the version with plain weights that this one was made of, or it itself; None where it is gone."""
    line = chain((version,), ancestors(version, repository.resolve))
    return next((each for each in line if each.precision not in QUANTIZED), None)


def _require_same(
    file: Path, name: str, repository: Repository, parent: Manifest, base: "Skeleton", weight: str
) -> None:
    """PEFT saves embedding and head again beside an adapter on one of them. Raises InvalidSource where they are not the
    base's own: they were trained too, or tokens were added."""
    import torch

    from models.weights.conversion import read
    from models.weights.loading import DTYPES, MappedWeights

    dtype = DTYPES["fp32" if parent.precision == "fp32" else "bf16"]
    plain, own = _unquantized(repository, parent), None
    if plain is not None:
        with suppress(KeyError):  # another model's weight
            weights = MappedWeights(repository.path(plain), dtype, plain.precision)
            own = weights.tensor(base.tied.get(weight, weight))
    if own is None or not torch.equal(read(file, name).to(dtype), own):
        raise InvalidSource(
            f"{ADAPTER_WEIGHTS} holds {name}, which is not the weight of {parent.reference}: save the adapter with "
            "save_embedding_layers=False, or train that layer by modules_to_save"
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
