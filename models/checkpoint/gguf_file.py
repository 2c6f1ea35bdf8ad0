"""A GGUF file holds a whole model: sizes, tokenizer, chat template and weights in blocks, as llama.cpp reads them.

`unpack` writes it as the checkpoint that it was made of: config.json, tokenizer files, and weights in bf16
(`gguf_weights`). transformers builds the tokenizer. What decides the model's meaning is written here and there, for
ARCHITECTURES only: the names of tensors, the sizes, the rotary positions. What is not known is refused, because a model
without it would answer, only worse.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.gguf_weights import (
    ROTARY_FACTORS,
    dequantized,
    named_weights,
    shape_of,
    write_weights,
)
from models.errors import InvalidSource
from models.progress import Progress, silent
from models.storage.staging import sha256_of

if TYPE_CHECKING:
    from gguf import ReaderTensor

SUFFIX: Final = ".gguf"
ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
"""llama.cpp's name of an architecture to the class that serves it. Files of Mistral and Mixtral say `llama`."""
_PLAIN_SPLITS: Final = ("gpt-2", "phi-2", "mpt", "olmo")
"""Names of the way in which GPT-2 splits text, besides those that transformers knows."""
_MALFORMED: Final = (ValueError, KeyError, IndexError, TypeError, struct.error, OverflowError, RecursionError)


def is_gguf(path: Path) -> bool:
    """Whether the path is a file that is called GGUF."""
    return path.suffix.lower() == SUFFIX and path.is_file()


def unpack(path: Path, target: Path, progress: Progress = silent) -> tuple[str, ...]:
    """Writes the model of the file `path` into the empty directory `target`. Returns what an import notes of it: its
    sha256 and the formats of its tensors. Raises InvalidSource for a file that is damaged, or of a model that is not
    served from GGUF."""
    with _readable(path):
        progress(0.0, f"reading {path.name}")
        told = _metadata(path)
        tensors = _tensors(path)
        config = _config(told, tensors)
        named = named_weights(tensors, config)
        (target / "config.json").write_text(json.dumps(config, indent=2))
        _write_tokenizer(path, target)
        write_weights(named, config, told.architecture, target, progress)
    formats = sorted({tensor.tensor_type.name for tensor in tensors.values()})
    return f"from GGUF of sha256 {sha256_of(path)}", f"tensors in {', '.join(formats)}, dequantized"


def config_of(path: Path) -> dict[str, Any]:
    """Returns the config.json of the model in a GGUF file. Raises InvalidSource as `unpack` does."""
    with _readable(path):
        return _config(_metadata(path), _tensors(path))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever a damaged file raises is InvalidSource."""
    try:
        yield
    except _MALFORMED as error:
        raise InvalidSource(f"{path.name} is no GGUF file that can be read: {str(error)[:200]}") from error


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Values by llama.cpp's keys; those of the architecture without its name before them."""

    values: Mapping[str, Any]
    architecture: str

    def own(self, key: str, default: Any = None) -> Any:
        return self.values.get(f"{self.architecture}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        """Raises InvalidSource for a size that is missing or no size."""
        value = self.own(key, default)
        if not isinstance(value, int) or value <= 0:
            raise InvalidSource(f"the file's {self.architecture}.{key} is {value!r}, which is no size")
        return value


def _metadata(path: Path) -> _Metadata:
    """Raises InvalidSource for an architecture that is not served, and any of _MALFORMED for a head that is damaged."""
    from transformers.integrations.gguf.reader import read_gguf_metadata

    values, _ = read_gguf_metadata(str(path))
    told = _Metadata(values, str(values["general.architecture"]))
    if told.architecture not in ARCHITECTURES:
        served = ", ".join(ARCHITECTURES)
        raise InvalidSource(
            f"{path.name} is of the architecture {told.architecture[:40]!r}; from GGUF there are {served}: import the "
            "safetensors checkpoint that it was made of"
        )
    return told


def _tensors(path: Path) -> dict[str, ReaderTensor]:
    """Returns the tensors by llama.cpp's names. `_metadata` must have read the whole head before: its reader stops
    where the file ends."""
    from gguf import GGUFReader

    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def _config(told: _Metadata, tensors: Mapping[str, ReaderTensor]) -> dict[str, Any]:
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    if told.size("block_count") != blocks:  # before a model of a damaged number of layers is built
        raise InvalidSource(f"the file says {told.size('block_count'):,} blocks and has tensors of {blocks:,}")
    heads, hidden = told.size("attention.head_count"), told.size("embedding_length")
    window = told.own("attention.sliding_window") if told.architecture == "llama" else None
    config = {
        "model_type": "mistral" if window else told.architecture,
        "architectures": ["MistralForCausalLM" if window else ARCHITECTURES[told.architecture]],
        "hidden_size": hidden,
        "intermediate_size": told.size("feed_forward_length"),
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": told.size("attention.head_count_kv", heads),
        "head_dim": told.size("attention.key_length", hidden // heads),
        "max_position_embeddings": told.size("context_length"),
        "rms_norm_eps": _decimal(told.own("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": _decimal(told.own("rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "vocab_size": shape_of(tensors["token_embd.weight"])[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": told.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": told.values.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": told.values.get("tokenizer.ggml.padding_token_id"),
    }
    if window:
        config["sliding_window"] = window
    if told.own("expert_count"):
        config |= _experts(told)
    elif told.architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    scaling = _rope_scaling(told, tensors.get(ROTARY_FACTORS), config)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _experts(told: _Metadata) -> dict[str, Any]:
    """Returns what config.json says of a mixture of experts. Raises InvalidSource for an architecture whose mixtures
    are not served."""
    active, width = told.size("expert_used_count"), told.own("expert_feed_forward_length")
    if told.architecture == "qwen3moe":
        return {
            "model_type": "qwen3_moe",
            "num_experts": told.size("expert_count"),
            "num_experts_per_tok": active,
            "moe_intermediate_size": told.size("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if told.architecture == "llama" and width is None:
        return {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": told.size("expert_count"),
            "num_experts_per_tok": active,
        }
    raise InvalidSource("the file is a mixture of experts of another kind than Qwen3-MoE's and Mixtral's")


def _decimal(value: float) -> float:
    """Returns the number that was meant by an fp32 one, as 1e-05 by 9.999999747378752e-06."""
    return float(f"{value:.6g}")


def _rope_scaling(told: _Metadata, factors: ReaderTensor | None, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns transformers' form of the scaling of positions. Raises InvalidSource for one that has none."""
    if factors is not None:
        return _llama3_scaling(dequantized(factors).tolist(), config)
    kind, factor = told.own("rope.scaling.type"), told.own("rope.scaling.factor")
    if kind in (None, "none") or not factor or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = told.size("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise InvalidSource(f"the file scales positions by {str(kind)[:40]!r}, which is not read from GGUF")


def _llama3_scaling(factors: list[float], config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama 3.1 and later divide slow frequencies by a factor; the file has one divisor for each frequency, and not the
    rule that made them. Returns the published rule if it makes the same ones."""
    low, high, original, factor = 1.0, 4.0, 8192, max(factors)
    half = int(config["head_dim"]) // 2
    made = []
    for at in range(half):
        wave = 2 * math.pi * float(config["rope_theta"]) ** (at / half)
        smooth = (original / wave - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth) if smooth else factor
        made.append(1.0 if wave < original / high else factor if wave > original / low else between)
    if len(factors) != half or any(abs(a / b - 1) > 1e-3 for a, b in zip(made, factors, strict=True)):
        raise InvalidSource("the file scales positions by factors of its own, which are not read from GGUF")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _write_tokenizer(path: Path, target: Path) -> None:
    """Raises InvalidSource for a byte-level tokenizer whose way of splitting text is not known: a file has its name
    only."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        convert_gguf_tokenizer,
        get_gguf_tokenizer,
    )

    architecture, vocabulary, told = get_gguf_tokenizer(str(path))
    splits = vocabulary.get("pre_tokenizer_type")
    if vocabulary.get("tokenizer_type") == "gpt2" and splits not in {*GGUF_PRE_TOKENIZER_SPLITS, *_PLAIN_SPLITS}:
        raise InvalidSource(f"the file's tokenizer splits text by {str(splits)[:40]!r}, which is not read from GGUF")
    backend, _ = convert_gguf_tokenizer(architecture, vocabulary)
    whole = json.loads(backend.to_str())
    own = set(vocabulary["tokens"])  # the library's classes add tokens of their own, which the model has no row for
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] in own]
    backend = Tokenizer.from_str(json.dumps(whole))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **told)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(target)
