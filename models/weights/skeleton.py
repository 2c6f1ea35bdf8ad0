"""A skeleton is a model's architecture without weights: its linear modules, names, and number of parameters.

transformers' own classes build it on the meta device. So it costs no memory and runs no code of the checkpoint.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from models.checkpoint.config_policy import PACKING, accept, as_text, is_packed, read_json
from models.errors import InvalidSource
from models.manifest import HADAMARD, QUANTIZED
from models.weights import experts
from models.weights.names import HEAD, HEAD_OF_GPT_NEOX
from models.weights.shapes import HADAMARD_BYTES, int4_bytes

# T5 and its kin have relative positions and often state no limit; this is what they were trained on.
_RELATIVE_POSITIONS = 512
_DTYPE_BYTES = {"fp32": 4, "bf16": 2}
_SCALE_BYTES = 4
_TABLES_BYTES = 4 << 30
_MOST_PARTS = 500_000
"""The most modules and parameters of a model: Switch Transformers with 2,048 experts have 346,000."""
_IDENTITY = {"model_type", "architectures"}
_OLD_FREQUENCIES = r"rotary_emb\.inv_freq$"


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear module: `module` is its canonical name; a `transposed` weight is stored [in, out] (GPT-2's Conv1D).
    `fused` names the tensor of files that holds it and others, if any."""

    module: str
    out_features: int
    in_features: int
    transposed: bool
    fused: str = ""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """`linears` by canonical weight name, and `experts`, the parts of each expert of a mixture, by that in files.
    `shapes` has those of all tensors by canonical name. `tied` maps a weight name that checkpoints may omit to the one
    it shares. `shares_head` says whether the embedding can read the rows of such a head in 8 bits, so that no file has
    to hold both.
    `unread` are patterns of names that checkpoints may hold and no model reads, such as the masks of older ones.
    `kv_heads` of `head_dim` numbers are the keys of one token in each of `kv_layers`, and again its values, in a
    decoder with ordinary attention; 0 heads where the family names none and keeps something else. `windows` are the
    tokens that a token sees in each of these layers, None for all; () where all layers see all. `file_bytes` are those
    of the GGUF file that it was read from, if it was."""

    linears: dict[str, Linear]
    experts: dict[str, Linear]
    tied: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    unread: tuple[str, ...]
    prefix: str
    parameters: int
    context_window: int
    vocab_size: int
    kv_layers: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    is_encoder_decoder: bool
    shares_head: bool
    file_bytes: int = 0

    @property
    def largest_matrix(self) -> int:
        """Weights of the largest linear module."""
        return max((each.out_features * each.in_features for each in self.coded.values()), default=0)

    @property
    def coded(self) -> dict[str, Linear]:
        """The layers that become 8-bit or 4-bit."""
        return self.linears | self.experts

    def weight_bytes(self, precision: str) -> int:
        """Bytes of a version's weights. An 8-bit or 4-bit version has a tied head of its own beside the embedding,
        unless they share it. Of a 4-bit version all layers are counted as 4-bit that can be, in groups of 32."""
        if precision == "file":
            return self.file_bytes
        if precision not in QUANTIZED:
            return self.parameters * _DTYPE_BYTES[precision]
        coded = sum(self._coded_bytes(each, precision) for each in self.coded.values())
        scales = sum(each.out_features * _SCALE_BYTES for each in self.coded.values())
        scales += HADAMARD_BYTES * len(self.coded) if precision in HADAMARD else 0
        beside = frozenset() if self.has_one_head(precision) else self.tied.keys()
        own = sum(each.out_features * each.in_features for name, each in self.coded.items() if name not in beside)
        return coded + scales + (self.parameters - own) * _DTYPE_BYTES["bf16"]

    def has_one_head(self, precision: str) -> bool:
        """Whether a version of this precision holds a tied head once, and no embedding."""
        return self.shares_head and precision in HADAMARD

    def _coded_bytes(self, linear: Linear, precision: str) -> int:
        weights = linear.out_features * linear.in_features
        if precision != "int4" or linear.out_features == self.vocab_size or linear.in_features % 32:
            return weights
        return int4_bytes(weights)

    def canonical(self, name: str) -> str:
        """The model's own name of a checkpoint's tensor: older checkpoints leave out the base model's prefix, and
        GPT-NeoX's head has another name in files."""
        others = (f"{self.prefix}.{name}", name.replace(f"{HEAD_OF_GPT_NEOX}.", f"{HEAD}.", 1))
        return name if name in self.shapes else next((other for other in others if other in self.shapes), name)

    def reads(self, name: str) -> bool:
        """Whether the model has use for a checkpoint's tensor, as far as that is known."""
        return self.canonical(name) in self.shapes or not any(re.search(pattern, name) for pattern in self.unread)


def config_of(directory: str | Path) -> PreTrainedConfig:
    """Returns the library's reading of the `config.json` in `directory`."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        str(directory), trust_remote_code=False, local_files_only=True
    )
    return config


def family_of(config: PreTrainedConfig) -> Any:
    """Returns the library's class that makes models of a configuration."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def build(directory: Path) -> Skeleton:
    """The skeleton of the checked `config.json` in `directory`. Raises InvalidSource, which names the key at fault,
    when it cannot be built."""
    content = read_json(directory / "config.json")
    try:
        with _parts_bounded():
            return _built(content)
    except InvalidSource:
        raise
    except Exception as error:  # transformers raises anything for a configuration it cannot build
        with _parts_bounded():
            raise InvalidSource(_at_fault(content, error)) from error


@contextmanager
def _parts_bounded() -> Iterator[None]:
    """Raises InvalidSource where this thread makes more parts of models than one may have: numbers of a configuration,
    such as those of layers and heads, multiply."""
    made, thread = count(1), get_ident()

    def refuse(*_: object) -> None:
        if get_ident() == thread and next(made) > _MOST_PARTS:
            raise InvalidSource(
                f"config.json makes a model of more than {_MOST_PARTS:,} modules and parameters; give the numbers of "
                "layers, heads, blocks and experts that it was made with"
            )

    modules = register_module_module_registration_hook(refuse)
    parameters = register_module_parameter_registration_hook(refuse)
    with modules, parameters:
        yield


def _built(content: dict[str, object]) -> Skeleton:
    with TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(as_text(content))
        config = config_of(directory)
    with torch.device("meta"):
        model: PreTrainedModel = family_of(config).from_config(config, trust_remote_code=False)
    _refuse_tables(model)
    layers, heads, width = _kept_for_a_token(config)
    return Skeleton(
        linears=_linears(model),
        experts=experts_of(model),
        tied=_tied(model),
        shapes={name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
        unread=(_OLD_FREQUENCIES, *sorted(model._keys_to_ignore_on_load_unexpected or ())),
        prefix=model.base_model_prefix,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        context_window=_context_window(config),
        vocab_size=int(config.vocab_size),
        kv_layers=layers,
        kv_heads=heads,
        head_dim=width,
        windows=_windows(config, layers),
        is_encoder_decoder=bool(config.is_encoder_decoder),
        shares_head=_shares_head(model),
    )


def _refuse_tables(model: PreTrainedModel) -> None:
    """Raises InvalidSource for a model that makes larger tables, such as those of positions, than its weights are."""
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    tables = sum(buffer.nbytes for buffer in model.buffers())
    if tables > max(_TABLES_BYTES, parameters):
        raise InvalidSource(
            f"config.json makes the model compute tables of {tables / 1e9:,.0f} GB beside its weights; give the number "
            "of positions that it was made with"
        )


def _at_fault(content: dict[str, object], error: Exception) -> str:
    """Returns the sentence about a configuration that cannot be built: the model can be, without the key at fault."""
    words = " ".join(str(error).split())[:200]
    for key in content.keys() - _IDENTITY:
        with suppress(Exception):
            _built({name: value for name, value in content.items() if name != key})
            return f"config.json has {str(content[key])[:80]} as {key[:80]!r}, of which no model can be built: {words}"
    return f"config.json does not describe a model that can be built: {words}"


def of_config(config: Path) -> Skeleton:
    """The skeleton of a `config.json` that was not checked yet. Raises InvalidSource for an architecture that is not
    served."""
    content = read_json(config)
    if is_packed(content):
        del content[PACKING]
    with TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(as_text(accept(content).config))
        return build(Path(directory))


def _linears(model: PreTrainedModel) -> dict[str, Linear]:
    linears: dict[str, Linear] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            linears[f"{name}.weight"] = Linear(name, module.out_features, module.in_features, transposed=False)
        elif isinstance(module, Conv1D):
            inputs, outputs = module.weight.shape
            linears[f"{name}.weight"] = Linear(name, outputs, inputs, transposed=True)
    return linears


def experts_of(model: PreTrainedModel) -> dict[str, Linear]:
    """The parts of all experts by their weights' names in files, of families whose names of experts are known."""
    names = experts.FAMILIES.get(model.config.model_type)
    parts: dict[str, Linear] = {}
    for module, fused in model.named_modules():
        if names is None or not experts.is_fused(fused):
            continue
        prefix = module.removesuffix(f"{experts.LIBRARY_PLACE}.experts")
        for name in names.parts(prefix, len(fused.gate_up_proj), names.gate, names.up, names.down):
            expert = experts.Expert.of_name(name)
            if expert is None:
                raise AssertionError(name)
            outputs, inputs = experts.of_module(fused, expert).weight.shape
            parts[f"{name}.weight"] = Linear(name, outputs, inputs, False, expert.fused if names.fused else "")
    return parts


def _tied(model: PreTrainedModel) -> dict[str, str]:
    """The output head's weight name to the input embedding's, when the configuration ties them."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None or not model.config.tie_word_embeddings:
        return {}
    names = {id(module): name for name, module in model.named_modules()}
    return {f"{names[id(head)]}.weight": f"{names[id(model.get_input_embeddings())]}.weight"}


def _shares_head(model: PreTrainedModel) -> bool:
    """Whether the embedding does nothing but look up rows of a tied head's matrix, and scale them."""
    embedding = model.get_input_embeddings()
    is_lookup = type(embedding) is torch.nn.Embedding or type(embedding).__name__.endswith("ScaledWordEmbedding")
    return is_lookup and bool(_tied(model)) and not model.config.is_encoder_decoder


def _context_window(config: PreTrainedConfig) -> int:
    """Positions of the model in tokens, under the name that its family uses for them."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length", "seq_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    if config.is_encoder_decoder:
        return _RELATIVE_POSITIONS
    raise InvalidSource("config.json does not say how many positions the model has; add max_position_embeddings")


def _windows(config: PreTrainedConfig, layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer. A family without types of layers has it in all of them or in none."""
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or window < 1 or getattr(config, "use_sliding_window", True) is False:
        return ()
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _kept_for_a_token(config: PreTrainedConfig) -> tuple[int, int, int]:
    """Layers, key-value heads and their size. A family that names no key-value heads has as many as it has heads."""

    def setting(*keys: str) -> int:
        values = (getattr(config, key, None) for key in keys)
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    heads = setting("num_attention_heads")
    width = setting("head_dim", "d_kv") or (setting("hidden_size", "d_model") // heads if heads else 0)
    return setting("num_decoder_layers", "num_hidden_layers"), setting("num_key_value_heads") or heads, width
