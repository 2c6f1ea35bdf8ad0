"""A shape holds the sizes of a decoder-only model, from its config.json or from the table of typical models.

It says how many weights and bytes such a model has. It knows no files and no machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from models.errors import InvalidSource
from models.manifest import HADAMARD, QUANTIZED

_FLOAT_BYTES: Final = {"fp32": 4}
_SCALE_BYTES: Final = 4
HADAMARD_BYTES: Final = 4
"""A layer's file says the block of its Hadamard transform."""


def int4_bytes(weights: int) -> int:
    """Returns the bytes of 4-bit weights in groups of 32, with a byte for their scale and one for their base."""
    return weights // 2 + 2 * weights // 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama-shaped decoder. `kv_heads`: heads of keys and values. `context_window`: its positions. `tied`:
    one matrix is embedding and head. `biased`: the products for queries, keys and values have a bias."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context_window: int
    tied: bool = True
    biased: bool = False

    @classmethod
    def of_config(cls, name: str, config: Mapping[str, object]) -> Shape:
        """Returns the shape that a config.json describes. Raises InvalidSource where a size is missing."""

        def size(key: str, default: int | None = None) -> int:
            value = config.get(key, default)
            if not isinstance(value, int) or value < 1:
                raise InvalidSource(f"config.json does not say {key}: the needs of this model cannot be forecast")
            return value

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        return cls(
            name,
            size("num_hidden_layers"),
            hidden,
            heads,
            size("num_key_value_heads", heads),
            size("head_dim", hidden // heads),
            size("intermediate_size"),
            size("vocab_size"),
            size("max_position_embeddings"),
            tied=config.get("tie_word_embeddings", True) is True,
            biased=config.get("attention_bias", config.get("model_type") == "qwen2") is True,
        )

    @property
    def qkv_width(self) -> int:
        """Outputs of a layer's products for queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's products: one row multiplies with each of them once."""
        attention = self.hidden * (self.qkv_width + self.attention_width)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def linear_weights(self) -> int:
        """Weights that a decode step multiplies with: those of the layers, and the head."""
        return self.layers * self.layer_weights + self.head_weights

    @property
    def parameters(self) -> int:
        """All weights, a tied matrix once."""
        norms = (2 * self.layers + 1) * self.hidden
        biases = self.layers * self.qkv_width if self.biased else 0
        return self.layers * self.layer_weights + (1 if self.tied else 2) * self.head_weights + norms + biases

    @property
    def windows(self) -> tuple[int | None, ...]:
        """No layer has a sliding window."""
        return ()

    @property
    def kv_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layers

    @property
    def row_values(self) -> int:
        """Elements that one row has between the products of one layer: normed, rotated, gated and added."""
        return 4 * self.hidden + self.qkv_width + self.attention_width + 3 * self.intermediate

    @property
    def largest_matrix(self) -> int:
        """Weights of the largest matrix."""
        return self.hidden * max(self.vocabulary, self.intermediate, self.attention_width)

    def weight_bytes(self, precision: str) -> int:
        """Returns the bytes of a version's weights, as `models.weights.quantize` writes them."""
        if precision not in QUANTIZED:
            return self.parameters * _FLOAT_BYTES.get(precision, 2)
        outputs = self.layers * (self.qkv_width + 2 * self.hidden + 2 * self.intermediate) + self.vocabulary
        rest = self.parameters - self.layers * self.layer_weights - (0 if self.tied else self.head_weights)
        coded = self.layers * self.layer_weights
        if precision == "int4":
            coded = int4_bytes(coded)
        if precision in HADAMARD:
            coded += HADAMARD_BYTES * (7 * self.layers + 1)
            if self.tied:
                rest -= self.head_weights  # the embedding reads the head's rows
        return coded + self.head_weights + _SCALE_BYTES * outputs + 2 * rest


TYPICAL: Final = (
    Shape("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151936, 32768, tied=True, biased=True),
    Shape("TinyLlama-1.1B", 22, 2048, 32, 4, 64, 5632, 32000, 2048, tied=False),
    Shape("Qwen2.5-3B", 36, 2048, 16, 2, 128, 11008, 151936, 32768, tied=True, biased=True),
    Shape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064, 32768, tied=False, biased=True),
)
"""Published models of about 0.5, 1, 3 and 7 billion weights, with the sizes of their own config.json."""
