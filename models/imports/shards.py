"""The shards of a checkpoint are its safetensors files, as the index names them. What they hold is checked here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from models.checkpoint import config_policy
from models.checkpoint.safetensors_file import INDEX, Tensor, read_header, read_headers
from models.errors import InvalidSource
from models.imports.sources import Source
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Precision, is_file_name

PLAIN_DTYPES: Final[dict[Precision, str]] = {"fp32": "F32", "bf16": "BF16"}
"""The dtype of all floating tensors of a version, by its precision, where that is a plain one."""
_MAX_SHARDS: Final = 1_000


def weight_files(present: list[str], source: Source) -> list[str]:
    """Names of the safetensors files to import, of the plain files `present` in `source`.

    Raises InvalidSource for a local directory that also holds pickled weights or code, for weights in another format,
    for an adapter, and for shards that the index does not name plainly.
    """
    source.refuse_code()
    if ADAPTER_CONFIG in present:
        raise InvalidSource(f"{ADAPTER_CONFIG}: this is a PEFT adapter; name its base version with adapter_of")
    if "config.json" not in present:
        raise InvalidSource("config.json is missing; give the directory that transformers' save_pretrained wrote")
    weights = [name for name in present if name.endswith(".safetensors")]
    if INDEX in present:
        return _shards(source, weights)
    if len(weights) != 1:
        raise InvalidSource(
            f"{len(weights)} safetensors files without {INDEX}: exactly one is expected; convert the weights to "
            "safetensors with transformers' save_pretrained"
        )
    return weights


def check_weights(directory: Path) -> list[Tensor]:
    """All tensors of a staged checkpoint. Raises InvalidSource for a bad header, or files unlike their index."""
    paths = [path for path in sorted(directory.glob("*.safetensors")) if path.name != ADAPTER_WEIGHTS]
    headers = read_headers(paths)
    tensors = [tensor for header in headers.values() for tensor in header]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise InvalidSource("A tensor is in two shards; save the model again")
    if (directory / INDEX).exists():
        actual = {tensor.name: name for name, header in headers.items() for tensor in header}
        if config_policy.read_json(directory / INDEX).get("weight_map") != actual:
            raise InvalidSource(f"{INDEX} does not list the tensors that the shards hold; save the model again")
    if not tensors:
        raise InvalidSource("The weights hold no tensor")
    return tensors


def _shards(source: Source, weights: list[str]) -> list[str]:
    """The files that the index names, each a plain name of a file that is there."""
    with source.open(INDEX) as stream:
        index = config_policy.parse_json(stream.read(config_policy.MAX_JSON_BYTES + 1), INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidSource(f"{INDEX} has no weight_map")
    names = {name if isinstance(name, str) else "" for name in weight_map.values()}
    for name in names:
        if not is_file_name(name) or name not in weights:
            raise InvalidSource(f"{INDEX} names the shard {name[:80]!r}, which is no safetensors file here")
    if len(names) > _MAX_SHARDS:
        raise InvalidSource(f"{INDEX} names {len(names):,} shards; at most {_MAX_SHARDS:,} are accepted")
    return sorted(names)


def leave_out_copies(directory: Path, dtype: str) -> dict[str, str]:
    """Of a tensor in several shards of a staged checkpoint the index says which one is meant; shards with others are
    written without them, floating tensors as `dtype`. Returns their sha256 by name."""
    from models.weights.conversion import rewrite

    if not (directory / INDEX).exists():
        return {}
    meant: Any = config_policy.read_json(directory / INDEX)["weight_map"]
    hashes: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        copies = {tensor.name for tensor in read_header(path) if meant.get(tensor.name, path.name) != path.name}
        if copies:
            kept = path.with_name(path.name + ".kept")
            hashes[path.name] = rewrite(path, kept, dtype, {}, partial(_is_not_in, copies))
            kept.replace(path)
    return hashes


def _is_not_in(names: set[str], name: str) -> bool:
    return name not in names
