"""The configuration policy says which model configurations are accepted. A configuration is data; every key that could
name code is refused.

Two rules: dangerous keys are refused by name in every JSON file of a source, at any depth; and of `config.json` only
the keys that transformers' own class for its `model_type` knows are kept, the others are dropped and reported.
Imports transformers only inside functions, because that is slow and brings torch.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import repeat
from pathlib import Path
from typing import Final

from models.checkpoint import strict_json
from models.errors import InvalidSource

MAX_JSON_BYTES = 16 << 20

# Keys that make a loader import code, fetch a file or change kernels; see CVE-2026-4372, CVE-2025-66448.
_REFUSED = {"auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "custom_object", "custom_objects"}
_OF_THE_WHOLE: Final = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype", "torch_dtype")
"""Keys that a part for text takes from the whole where it has none."""
PACKING: Final = "quantization_config"
"""The key that says how a checkpoint's weights are packed."""
MXFP4: Final = "mxfp4"
_POSITIVE: Final = frozenset({"rope_theta", "rotary_emb_base", "rope_local_base_freq", "factor"})
"""Keys of numbers that a model divides by or takes the logarithm of; epsilons are found by their endings."""
_MOST: Final = {
    "layers": 1_000, "layer": 1_000, "types": 1_000, "heads": 10_000, "head": 10_000, "experts": 10_000,
    "positions": 1 << 31, "embeddings": 1 << 31,
}  # fmt: skip
"""The largest number of a key by its last word. A model is built of as many parts before its weights are looked at.
The types are GPT-Neo's: `[[["global", "local"], 12]]`."""
_LAYERS: Final = frozenset({"layers", "layer"})
_EXPERTS: Final = frozenset({"experts"})
_MOST_EXPERTS: Final = 100_000
"""Of all layers. Published mixtures have 25,000, and Switch Transformers with 2,048 experts 49,152."""
FP8_METHODS: Final = ("fp8", "compressed-tensors", "modelopt")
_READ: Final = ("awq", "gptq", MXFP4, *FP8_METHODS)
"""The ways of packing whose weights an import makes plain."""
_QUANTIZED = {PACKING, "compression_config"}

# Read by transformers' own classes although they are no fields, or no fields any more. 61 families read head_dim so.
# fmt: off
_LEGACY = frozenset({
    "model_type", "torch_dtype", "dtype", "rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct",
    "rotary_emb_base", "rotary_dim", "rope_local_base_freq", "global_rope_theta", "local_rope_theta",
    "sliding_window_pattern", "first_k_dense_replace", "moe_layer_freq", "full_attention_interval", "qk_rope_head_dim",
    "tie_word_embeddings", "n_ctx", "n_positions", "n_embed", "num_heads", "num_experts", "use_bias", "qkv_bias",
    "head_dim", "max_position_embeddings", "seq_length",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Accepted:
    """A configuration after the policy: the keys that stay, the names of the dropped ones, its two identities, whether
    an encoder reads the prompt, and the class of which it is the part for text ("" if it is whole)."""

    config: dict[str, object]
    dropped: tuple[str, ...]
    architecture: str
    model_type: str
    has_encoder: bool
    text_of: str = ""


def is_packed(config: Mapping[str, object]) -> bool:
    """Whether the content of a `config.json` is of a checkpoint whose packed weights are read."""
    quantization = config.get(PACKING)
    return isinstance(quantization, dict) and quantization.get("quant_method") in _READ


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a foreign file. Raises InvalidSource when it is too large, no object, or has a key twice."""
    with path.open("rb") as stream:
        return parse_json(stream.read(MAX_JSON_BYTES + 1), path.name)


def parse_json(data: bytes, where: str) -> dict[str, object]:
    """`read_json` for the content of the file `where`."""
    if len(data) > MAX_JSON_BYTES:
        raise InvalidSource(f"{where} is larger than {MAX_JSON_BYTES >> 20} MiB")
    try:
        value = strict_json.loads(data)
    except ValueError as error:
        raise InvalidSource(f"{where} {str(error)[:160]}") from None
    if not isinstance(value, dict):
        raise InvalidSource(f"{where} must hold a JSON object")
    return value


def as_text(document: dict[str, object]) -> str:
    """A JSON document as it is stored."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def refuse_dangerous(value: object, where: str) -> None:
    """Raises InvalidSource naming the first key, at any depth, that could bring in code. `where` names the file."""
    if isinstance(value, list):
        for item in value:
            refuse_dangerous(item, where)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key in _REFUSED or ("_implementation" in key and isinstance(item, str | dict | list)):
            raise InvalidSource(f"{where} has the key {key[:80]!r}, which can make a loader run other code; remove it")
        if key in _QUANTIZED and item is not None:
            raise InvalidSource(
                f"{where} has {key!r} of another method than awq, gptq and mxfp4, or fp8, which are unpacked: import "
                "the unquantized checkpoint, then quantize it here"
            )
        refuse_dangerous(item, where)


def accept(config: dict[str, object]) -> Accepted:
    """Apply both rules to the content of a `config.json`.

    The first of `architectures` must be transformers' own text-generation class for `model_type`; raises InvalidSource.
    Where it is so, keys of its own code are dropped like others. Of a class that also reads images, its part for text
    is accepted.
    """
    config, text_of = _text_part(config)
    plain = {key: value for key, value in config.items() if not _names_code_in_vain(key, value)}
    refuse_dangerous(plain, "config.json")
    refuse_unusable(config)
    model_type, architectures = config.get("model_type"), config.get("architectures")
    if not isinstance(model_type, str):
        raise InvalidSource("config.json needs a model_type, such as 'llama'")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise InvalidSource("config.json needs exactly one class in architectures, such as 'LlamaForCausalLM'")
    native = _native_architectures(model_type)
    if architectures[0] not in native:
        own = "; it needs code of its own (auto_map), which is never run" if "auto_map" in config else ""
        own += "; it is multimodal" if "vision_config" in config else ""
        raise InvalidSource(
            f"The architecture {architectures[0][:80]!r} is not served{own}; "
            f"for model_type {model_type[:80]!r} it may be: {', '.join(sorted(native)) or 'none'}"
        )
    allowed = _allowed_keys(model_type)
    kept = {key: value for key, value in config.items() if key in allowed}
    dropped = tuple(sorted(config.keys() - kept.keys()))
    has_encoder = architectures[0] in _names(_encoder_decoders(), model_type)
    if has_encoder:
        kept["is_encoder_decoder"] = True
    return Accepted(kept, dropped, architectures[0], model_type, has_encoder, text_of)


def _names_code_in_vain(key: str, value: object) -> bool:
    """Whether a key only says which code reads the model elsewhere; one that fetches kernels has a `/` in its value."""
    return key == "auto_map" or ("_implementation" in key and isinstance(value, str) and "/" not in value)


def _text_part(config: dict[str, object]) -> tuple[dict[str, object], str]:
    """Returns the configuration of the part for text and the class that it is a part of; a configuration without parts
    as it is, and "". Raises InvalidSource for a part that is no model by itself."""
    text, whole = config.get("text_config"), config.get("architectures")
    if not isinstance(text, dict) or not isinstance(whole, list) or len(whole) != 1:
        return config, ""
    model_type = text.get("model_type") or _type_of_text(str(config.get("model_type")))
    native = _names(_causal(), str(model_type))
    if len(native) != 1 or str(whole[0]) in native:
        raise InvalidSource(
            f"{str(whole[0])[:80]!r} is multimodal, and its part for text, {str(model_type)[:80]!r}, is no model by "
            "itself here: choose a model for text"
        )
    shared = {key: config[key] for key in _OF_THE_WHOLE if key in config and text.get(key) is None}
    return text | shared | {"model_type": model_type, "architectures": sorted(native)}, str(whole[0])


def _type_of_text(model_type: str) -> str | None:
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return None
    return getattr(CONFIG_MAPPING[model_type].sub_configs.get("text_config"), "model_type", None)


def refuse_unusable(value: object) -> None:
    """Raises InvalidSource for a number, at any depth, that no model can compute with, and for more experts in all
    layers than a model is built of."""
    for key, item in _entries(value):
        _refuse_number(key, item)
    layers, experts = (max(_numbers(value, words), default=(0, "")) for words in (_LAYERS, _EXPERTS))
    if layers[0] * experts[0] > _MOST_EXPERTS:
        raise InvalidSource(
            f"config.json has {layers[0]:,} as {layers[1][:80]!r} and {experts[0]:,} as {experts[1][:80]!r}, and at "
            f"most {_MOST_EXPERTS:,} experts in all layers are accepted: give the numbers that the model was made with"
        )


def _entries(value: object, within: str = "") -> Iterator[tuple[str, object]]:
    """Yields the items of a configuration at any depth, each with its key; items of a list have the list's."""
    items = value.items() if isinstance(value, dict) else zip(repeat(within), value) if isinstance(value, list) else ()
    for key, item in items:
        yield key, item
        yield from _entries(item, key)


def _last_word(key: str) -> str:
    return key.rpartition("_")[2]


def _numbers(value: object, words: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yields the whole numbers whose keys end with one of these words, each with its key."""
    return ((item, key) for key, item in _entries(value) if isinstance(item, int) and _last_word(key) in words)


def _refuse_number(key: str, item: object) -> None:
    if isinstance(item, float) and math.isnan(item):
        raise InvalidSource(f"config.json has NaN as {key[:80]!r}; give the number that the model was made with")
    is_positive = key in _POSITIVE or key.endswith(("_eps", "epsilon"))
    if is_positive and isinstance(item, int | float) and not 0 < item < math.inf:
        raise InvalidSource(f"config.json has {item} as {key[:80]!r}, which must be a number above 0")
    most = _MOST.get(_last_word(key), math.inf)
    if isinstance(item, int) and item > most:
        raise InvalidSource(f"config.json has {str(item)[:20]} as {key[:80]!r}, and at most {most:,} are accepted")


def _native_architectures(model_type: str) -> set[str]:
    return _names(_causal(), model_type) | _names(_encoder_decoders(), model_type)


def _causal() -> Mapping[str, str | Iterable[str]]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _encoder_decoders() -> Mapping[str, str | Iterable[str]]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def _names(mapping: Mapping[str, str | Iterable[str]], model_type: str) -> set[str]:
    found = mapping.get(model_type, ())
    return {found} if isinstance(found, str) else set(found)


def _allowed_keys(model_type: str) -> set[str]:
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    own = {field.name for field in fields(config_class) if not field.name.startswith("_")}
    renamed = config_class.attribute_map
    return own | set(renamed) | set(renamed.values()) | _LEGACY
