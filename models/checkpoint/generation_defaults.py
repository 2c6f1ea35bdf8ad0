"""Generation defaults say how the author of a version wants tokens chosen where a request leaves that open.

They stand in `generation_config.json`, which a version keeps beside its weights; an import of a GGUF file writes the
file's `general.sampling.*` there. This module reads JSON and imports nothing of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from models.checkpoint.decoder_start import GENERATION

MOST_SUPPRESSED: Final = 1024
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}
"""The keys that act, which are our sampling parameters' names too, with the values that a request may have."""
PENALTIES: Final = frozenset({"repetition_penalty", "frequency_penalty", "presence_penalty"})
"""What acts without chance too."""
LEAST_PROBABILITY: Final = 1e-9
UNUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": ([],),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_new_tokens": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "mirostat": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": (),
    "stop_strings": ([],),
    "top_h": (),
    "watermarking_config": (),
    "xtc_probability": (0,),
}
"""Keys that would change an answer's tokens and that nothing here acts on, with the values that change nothing."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """`sampling` has the author's values by our parameters' names. `is_greedy`: the author wants no chance at all.
    `suppressed` are tokens that no answer has. `unused` names what the file says and nothing acts on."""

    sampling: Mapping[str, float] = field(default_factory=dict)
    is_greedy: bool = False
    suppressed: tuple[int, ...] = ()
    unused: tuple[str, ...] = ()


NO_DEFAULTS: Final = GenerationDefaults()


def of_version(directory: Path) -> GenerationDefaults:
    """Returns a version's defaults, whenever it was published. Raises OSError or ValueError for an unreadable file."""
    path = directory / GENERATION
    content = json.loads(path.read_bytes()) if path.exists() else {}
    return of_json(content) if isinstance(content, dict) else NO_DEFAULTS


def of_json(content: Mapping[str, Any]) -> GenerationDefaults:
    """Returns the defaults in the content of a `generation_config.json`. With `do_sample` false what shapes chance has
    no meaning, as in transformers. The first token of a decoder behind an encoder is `decoder_start`'s."""
    is_greedy = content.get("do_sample") is False
    values = {name: content[name] for name in BOUNDS if content.get(name) is not None}
    usable = {name: _number(name, value) for name, value in values.items() if _is_usable(name, value)}
    sampling = {name: value for name, value in usable.items() if not is_greedy or name in PENALTIES}
    suppressed = content.get("suppress_tokens")
    is_list = isinstance(suppressed, list) and len(suppressed) <= MOST_SUPPRESSED and all(map(_is_id, suppressed))
    unused = [f"{name} {repr(value)[:40]}" for name, value in values.items() if name not in usable]
    unused += ["suppress_tokens"] if suppressed and not is_list else []
    return GenerationDefaults(
        sampling, is_greedy, tuple(suppressed or ()) if is_list else (), (*unused, *_unused(content))
    )


def _number(name: str, value: float) -> float:
    """Returns the value as the sampler has it: 0 switches `top_k` off, and no probability is 0 beside 1 in fp32."""
    if name == "top_k":
        return max(int(value), 0)
    return max(value, LEAST_PROBABILITY) if name in ("top_p", "typical_p") else value


def _is_usable(name: str, value: object) -> bool:
    least, most = BOUNDS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    return is_number and (name != "top_k" or value == int(value))  # type: ignore[call-overload]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _unused(content: Mapping[str, Any]) -> Iterator[str]:
    acts = {"forced_bos_token_id"} if "decoder_start_token_id" in content else set()
    for name, neutral in UNUSED.items():
        value = content.get(name)
        if value is not None and value not in neutral and name not in acts:
            yield name
