"""Pooling says how a version makes one vector of a text's hidden states.

An import reads it from the files that sentence-transformers keeps beside a model, and writes it to `pooling.json`:

    modules.json              the model's parts: Transformer, Pooling, Normalize, …
    1_Pooling/config.json     how hidden states become one vector

This module reads JSON and imports neither torch nor sentence-transformers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

POOLING: Final = "pooling.json"
MODULES: Final = "modules.json"
POOLING_CONFIG: Final = "1_Pooling/config.json"
MAX_BYTES: Final = 1 << 16
KINDS: Final = ("mean", "last", "cls")
SWITCHES: Final = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_cls_token": "cls",
}
"""sentence-transformers' switches, and our words."""
MODES: Final = {"mean": "mean", "lasttoken": "last", "cls": "cls"}
"""The values of `pooling_mode`, which newer files have."""
COMPUTED: Final = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass(frozen=True, slots=True)
class VersionPooling:
    """`kind` is "mean", "last" or "cls" (the first token's state). `refusal` is a clause that says why the author's own
    vectors cannot be computed; "" if they can."""

    kind: str = "last"
    normalize: bool = True
    refusal: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or type(self.normalize) is not bool or type(self.refusal) is not str:
            raise ValueError(f"{POOLING} holds no pooling; import the version again")


DEFAULT: Final = VersionPooling()
"""Of a version that was not made for embeddings: the last token's state, which alone has seen all others."""


def of_version(directory: Path) -> VersionPooling:
    """Returns a version's pooling. Raises OSError or ValueError for an unusable file."""
    path = directory / POOLING
    if not path.exists():
        return DEFAULT
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict) or content.keys() != asdict(DEFAULT).keys():
        raise ValueError(f"{POOLING} holds no pooling; import the version again")
    return VersionPooling(**content)


def as_text(pooling: VersionPooling) -> str:
    return json.dumps(asdict(pooling), indent=2) + "\n"


def of_files(modules: bytes, config: bytes | None) -> VersionPooling:
    """Returns what the contents of the two files say; `config` None is a missing file. It refuses parts and kinds that
    nothing here computes, because their vectors would be others than the author's."""
    listed, settings = _json(modules), _json(config or b"{}")
    if not isinstance(listed, list) or not isinstance(settings, dict):
        return VersionPooling(refusal=f"its {MODULES} or {POOLING_CONFIG} could not be read")
    parts = {str(each.get("type", "")).rpartition(".")[2] for each in listed if isinstance(each, dict)}
    if others := sorted(parts - COMPUTED):
        return VersionPooling(refusal=f"its {MODULES} names {', '.join(others)[:80]}, which nothing computes here")
    kinds = _kinds(settings)
    if len(kinds) != 1 or not kinds <= set(KINDS):
        return VersionPooling(refusal=f"its {POOLING_CONFIG} sets no pooling of {', '.join(KINDS)}, or several")
    return VersionPooling(kinds.pop(), "Normalize" in parts)


def _kinds(config: dict[str, Any]) -> set[str]:
    """Returns the kinds of pooling that are set, under our words where there is one."""
    if isinstance(mode := config.get("pooling_mode"), str):
        return {MODES.get(mode, mode)}
    switched = (name for name, value in config.items() if name.startswith("pooling_mode_") and value is True)
    return {SWITCHES.get(name, name) for name in switched}


def _json(data: bytes) -> Any:
    try:
        return json.loads(data) if len(data) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
