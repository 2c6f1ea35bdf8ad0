"""The decoder start holds the first tokens of an encoder-decoder version's decoder.

This module reads JSON and imports nothing of transformers.

Libraries guess the start from several places. An import writes it into `generation_config.json` once.
"""

from __future__ import annotations

import json
from pathlib import Path

from models.errors import InvalidSource

CONFIG, GENERATION = "config.json", "generation_config.json"
_START, _FORCED = "decoder_start_token_id", "forced_bos_token_id"


def settle(config: dict[str, object], generation: dict[str, object]) -> dict[str, object]:
    """Returns `generation` of an encoder-decoder model with its decoder's start: its own, else that of `config`. A
    forced first token is read from `config` only if there is no `generation`, as the library does. Raises InvalidSource
    if neither has a start."""
    start, forced = _first(_START, generation, config), _first(_FORCED, generation or config)
    if start is None:
        raise InvalidSource(f"{GENERATION} does not say what the decoder starts with; add {_START}")
    return generation | {_START: start} | ({} if forced is None else {_FORCED: forced})


def decoder_start(directory: Path) -> tuple[int, ...]:
    """Returns the token ids of a version: its start token, and the forced first token of its answers, if any. Returns
    none for a version without an encoder or a config. Raises OSError or ValueError for unreadable files."""
    path = directory / CONFIG
    if not path.exists() or not json.loads(path.read_bytes()).get("is_encoder_decoder"):
        return ()
    generation = json.loads((directory / GENERATION).read_bytes())
    return tuple(id for key in (_START, _FORCED) if (id := _first(key, generation)) is not None)


def _first(key: str, *places: dict[str, object]) -> int | None:
    found = (place.get(key) for place in places)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)
