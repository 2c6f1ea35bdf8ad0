"""The decoder start is what the decoder of an encoder-decoder version begins with. This module reads JSON and imports
nothing of transformers.

Libraries guess it from several places; an import writes it into `generation_config.json`, for good.
"""

from __future__ import annotations

import json
from pathlib import Path

from models.errors import InvalidSource

CONFIG, GENERATION = "config.json", "generation_config.json"
_START, _FORCED = "decoder_start_token_id", "forced_bos_token_id"


def settle(config: dict[str, object], generation: dict[str, object]) -> dict[str, object]:
    """`generation` of an encoder-decoder model with its decoder's start in it: its own, else that of `config`; what an
    answer is forced to begin with is read from `config` only where there is no `generation`, as the library does.
    Raises InvalidSource where neither says how to start."""
    start, forced = _first(_START, generation, config), _first(_FORCED, generation or config)
    if start is None:
        raise InvalidSource(f"{GENERATION} does not say what the decoder starts with; add {_START}")
    return generation | {_START: start} | ({} if forced is None else {_FORCED: forced})


def decoder_start(directory: Path) -> tuple[int, ...]:
    """The token ids of a version: its start token and, where its answers always begin with the same token, that one.
    Empty for a version without an encoder, or without a config. Raises OSError or ValueError for files that cannot be
    read."""
    path = directory / CONFIG
    if not path.exists() or not json.loads(path.read_bytes()).get("is_encoder_decoder"):
        return ()
    generation = json.loads((directory / GENERATION).read_bytes())
    return tuple(id for key in (_START, _FORCED) if (id := _first(key, generation)) is not None)


def _first(key: str, *places: dict[str, object]) -> int | None:
    found = (place.get(key) for place in places)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)
