"""This module loads a version's directory as a model ready to compute, in fp32, bf16, 8-bit or 4-bit.

It knows files, but no requests or steps. It imports transformers only inside functions, because that import takes
longer than the weights of a small model.

8-bit files hold `<module>.weight` int8 [out, in] and `<module>.weight_scale` fp32 [out] for each linear layer.
`int8` versions also hold `<module>.hadamard` int32 [1], the block of the Hadamard transform that the weights and their
inputs pass (`models.weights.hadamard`); older ones have none. Where the output head is the embedding's matrix, they
hold it once, as the head's.
`llm-int8` versions also hold `<module>.outlier_columns` int32 [n] and `<module>.outlier_weight` bf16 [out, n]. 4-bit
layers of `int4` versions hold `<module>.weight` uint8 [out, in / 2], `<module>.group_scale` uint8 and
`<module>.group_base` int8 [out, in / group] (`models.weights.int4`). `file` versions hold a GGUF file's blocks
(`models.weights.blocks`). The rest is bf16. Such a model is built without memory
(meta device), and its tensors are mapped from the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from models.checkpoint.block_types import type_of
from models.manifest import ADAPTER_FILES, ADAPTER_WEIGHTS, QUANTIZED
from models.weights import adapters
from models.weights.blocks import BlockWeight, taken
from models.weights.experts import Expert, SeparateExperts, library_name
from models.weights.hadamard import transformed
from models.weights.int4 import Int4Weight
from models.weights.names import (
    COLUMNS_SUFFIX,
    GROUP_BASE_SUFFIX,
    GROUP_SCALE_SUFFIX,
    HADAMARD_SUFFIX,
    HEAD,
    HEAD_OF_GPT_NEOX,
    KEPT_SUFFIX,
    SCALE_SUFFIX,
)

if TYPE_CHECKING:
    import transformers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Outliers:
    """Columns of a layer's input, int32 [n] ascending, and their weights, bf16 [out, n]."""

    columns: Tensor
    weight: Tensor

    @classmethod
    def joined(cls, of_parts: Sequence[Outliers | None]) -> Outliers | None:
        """Joins the outliers of layers side by side, which read the same rows. Raises ValueError if their columns
        differ."""
        found = [each for each in of_parts if each is not None]
        if not found:
            return None
        if len(found) < len(of_parts) or any(not torch.equal(each.columns, found[0].columns) for each in found):
            raise ValueError("layers that read the same rows have different outliers")
        return cls(found[0].columns, torch.cat([each.weight for each in found]))


Coded = Tensor | Int4Weight | BlockWeight
LinearFactory = Callable[[Any, Any, Tensor | None, Outliers | None, bool, int], nn.Module]
"""(weight int8 [out, in], its 4-bit form or blocks, scale fp32 [out], None for blocks, bias or None, outliers or None,
weight only, block of the Hadamard transform) → the layer that multiplies by them."""


class CodedEmbedding(nn.Module):
    """The rows of a coded output head as an embedding, times `embed_scale` if there is one: one matrix serves both.
    `head` has `weight` int8 [vocabulary, hidden], `scale` fp32 [vocabulary] and `hadamard`, or a `weight` of blocks."""

    def __init__(self, head: Any, dtype: torch.dtype, embed_scale: Tensor | None = None) -> None:
        super().__init__()
        self._head = (head,)  # in a tuple it is no submodule
        self.dtype = dtype
        self.embed_scale: Tensor | None
        self.register_buffer("embed_scale", embed_scale, persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Returns [.., hidden] for token ids [..]."""
        (head,) = self._head
        if isinstance(head.weight, BlockWeight):
            rows = head.weight.rows(token_ids, self.dtype)
        else:
            rows = head.weight[token_ids].float() * head.scale[token_ids][..., None]
            rows = transformed(rows, head.hadamard).to(self.dtype)
        return rows if self.embed_scale is None else rows * self.embed_scale.to(self.dtype)


def resolve_device(device: str) -> torch.device:
    """Returns the device; "auto" is CUDA if there is one, else the CPU. Raises ValueError for one that is not there."""
    chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    gpus = torch.cuda.device_count()
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", 0)  # torch's own functions want a number
    if chosen.type == "cuda" and (chosen.index or 0) >= gpus:
        names = ", ".join(f"cuda:{number}" for number in range(gpus))
        raise ValueError(f"{device} is not there; there are: {names or 'cpu'}")
    return chosen


def load_model(
    directory: str | Path,
    precision: str,
    dtype: torch.dtype,
    device: torch.device,
    int8_linear: LinearFactory,
    room: dict[int, int] | None = None,
) -> transformers.PreTrainedModel:
    """Returns the model in evaluation mode on `device`; with `room`, the bytes that each GPU may give, the library
    divides its layers among them. A QUANTIZED `precision` reads 8-bit and 4-bit files; any other converts to `dtype`.
    Raises OSError or ValueError if files are missing or do not fit the config."""
    import transformers

    from models.weights.fit import lacking
    from models.weights.skeleton import config_of, family_of

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.utils.logging.set_verbosity_warning()  # type: ignore[no-untyped-call]
    if precision in QUANTIZED:
        model = _load_int8(Path(directory), precision, dtype, device, int8_linear)
    else:
        with _without_adapter(Path(directory)) as base:
            model, info = family_of(config_of(directory)).from_pretrained(
                str(base),
                dtype=dtype,
                device_map="balanced" if room else {"": device},
                max_memory=room,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        if info["missing_keys"]:
            raise ValueError(lacking(info["missing_keys"]))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.train(False)
    return model


@contextmanager
def _without_adapter(directory: Path) -> Iterator[Path]:
    """Gives the library a directory without the adapter. With PEFT installed, the library would apply it to every
    row."""
    if not (directory / ADAPTER_WEIGHTS).exists():
        yield directory
        return
    with tempfile.TemporaryDirectory() as view:
        for path in directory.iterdir():
            if path.name not in ADAPTER_FILES:
                Path(view, path.name).symlink_to(path.resolve())
        yield Path(view)


def _load_int8(
    directory: Path, precision: str, dtype: torch.dtype, device: torch.device, int8_linear: LinearFactory
) -> transformers.PreTrainedModel:
    from models.weights.skeleton import config_of, family_of

    config = config_of(directory)
    with torch.device("meta"):
        model: transformers.PreTrainedModel = family_of(config).from_config(config, dtype=dtype)
    _fill_buffers(model)
    tensors = dict(_mapped_tensors(directory))
    blocks = taken(list(tensors), tensors.pop)
    experts: dict[str, dict[tuple[int, int], nn.Module]] = {}
    coded = [key.removesuffix(SCALE_SUFFIX) for key in tensors if key.endswith(SCALE_SUFFIX)]
    for name in (*coded, *blocks):
        weight: Coded = blocks[name] if name in blocks else _coded(name, tensors.pop)
        scale = None if name in blocks else tensors.pop(name + SCALE_SUFFIX).to(device)
        bias = tensors.pop(f"{name}.bias", None)
        bias = None if bias is None else bias.to(device, dtype)
        columns, kept = tensors.pop(name + COLUMNS_SUFFIX, None), tensors.pop(name + KEPT_SUFFIX, None)
        outliers = None if columns is None or kept is None else Outliers(columns.to(device), kept.to(device))
        block = _block(tensors.pop(name + HADAMARD_SUFFIX, None))
        layer = int8_linear(weight.to(device), scale, bias, outliers, precision == "int8-weight", block)
        if expert := Expert.of_name(name):
            experts.setdefault(expert.module, {})[expert.number, expert.part] = layer
        else:
            model.set_submodule(name, layer)
    for name, parts in experts.items():
        model.set_submodule(name, SeparateExperts(model.get_submodule(name), parts))
    state = {library_name(name): _as(tensor, dtype) for name, tensor in tensors.items()}
    _share_head(model, state, dtype)
    for name in model.state_dict().keys() - state.keys():  # such as an encoder's and a decoder's copy of one embedding
        if (shared := model.all_tied_weights_keys.get(name)) in state:
            state[name] = state[shared]
    unexpected = model.load_state_dict(state, strict=False, assign=True).unexpected_keys
    missing = [name for name, tensor in _all_tensors(model) if tensor.is_meta]
    if missing or unexpected:
        raise ValueError(f"8-bit files do not fit the config: missing {missing[:3]}, unexpected {unexpected[:3]}")
    model.to(device)  # type: ignore[arg-type]
    return model


def _coded(name: str, take: Callable[[str], Tensor]) -> Tensor | Int4Weight:
    """Returns a layer's 8-bit or 4-bit weights, of tensors that `take` gives by name."""
    weight = take(f"{name}.weight")
    if weight.dtype is not torch.uint8:
        return weight
    return Int4Weight(weight, take(name + GROUP_SCALE_SUFFIX), take(name + GROUP_BASE_SUFFIX))


def _block(stored: Tensor | None) -> int:
    """Returns the block of a layer's Hadamard transform; 1, which mixes nothing, for layers of older versions."""
    return 1 if stored is None else int(stored)


def _share_head(model: transformers.PreTrainedModel, state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Lets the embedding read the rows of a coded head, if no file holds an embedding."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    names = {module: name for name, module in model.named_modules()}
    is_coded = isinstance(getattr(head, "scale", None), Tensor) or isinstance(head.weight, BlockWeight)
    if f"{names[embedding]}.weight" in state or not is_coded:
        return
    scale = getattr(embedding, "embed_scale", None)
    model.set_submodule(names[embedding], CodedEmbedding(head, dtype, scale))


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _fill_buffers(model: transformers.PreTrainedModel) -> None:
    """Computes the buffers that no file holds (rotary frequencies, embedding scales). On the meta device they have no
    values, and a model with arbitrary values writes plausible nonsense. The library's own initialiser fills them. The
    parameters still have no memory here, so nothing is drawn at random."""
    for module in model.modules():
        absent = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        for name in absent:
            buffer = getattr(module, name)
            module._buffers[name] = torch.full_like(
                buffer, float("nan") if buffer.is_floating_point() else 0, device="cpu"
            )
        if absent:
            model._init_weights(module)  # type: ignore[no-untyped-call]
        for name in absent:
            if bool(torch.isnan(getattr(module, name)).any()):
                raise ValueError(f"no values for the buffer {name} of {type(module).__name__}")


class MappedWeights:
    """Gives a version's tensors by the names in its files, and the head also by the library's, without a model. Both
    methods raise KeyError for names that no file holds."""

    def __init__(self, directory: str | Path, dtype: torch.dtype, precision: str) -> None:
        """Raises OSError for unreadable files. Floating point tensors, except scales, are returned in `dtype`."""
        self._paths = dict(_names(Path(directory)))
        self._blocks = {block[0]: (name, block[1]) for name in self._paths if (block := type_of(name))}
        self.dtype = dtype
        self._weight_only = precision == "int8-weight"

    def linear(self, name: str) -> Any:
        """Returns a linear layer's `weight` [out, in], `bias` [out] or None and, if the weight is 8-bit or 4-bit,
        `scale` [out], `weight_only`, `hadamard` and `outliers` or None. The weight may be blocks."""
        if name == HEAD and f"{HEAD_OF_GPT_NEOX}.weight" in self._paths:
            name = HEAD_OF_GPT_NEOX
        expert = Expert.of_name(name)
        if expert and expert.fused in self._paths:
            return expert.of_fused(partial(self._fused, expert), transposed=True, in_turn=True)
        scale, bias = name + SCALE_SUFFIX, f"{name}.bias"
        layer = SimpleNamespace(
            weight=self.blocks(name) or _coded(name, self.tensor),
            bias=self.tensor(bias) if bias in self._paths else None,
        )
        if scale in self._paths:
            layer.scale = _mapped(self._paths[scale], scale)
            layer.weight_only, layer.outliers = self._weight_only, None
            block = name + HADAMARD_SUFFIX
            layer.hadamard = _block(_mapped(self._paths[block], block) if block in self._paths else None)
            columns, kept = name + COLUMNS_SUFFIX, name + KEPT_SUFFIX
            if columns in self._paths:
                layer.outliers = Outliers(_mapped(self._paths[columns], columns), _mapped(self._paths[kept], kept))
        return layer

    def _fused(self, expert: Expert, name: str) -> Tensor | None:
        found = f"{expert.module}.{name}"
        return self.tensor(found) if found in self._paths else None

    def blocks(self, module: str) -> BlockWeight | None:
        """Returns a module's weights if they are blocks."""
        if module not in self._blocks:
            return None
        name, kind = self._blocks[module]
        return BlockWeight(_mapped(self._paths[name], name), kind)

    def tensor(self, name: str) -> Tensor:
        return _as(_mapped(self._paths[name], name), self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class LowRankWeights:
    """An adapter's addition to a linear layer's y = W x: scale * B (A x). `a` is A [rank, in]. `b` is B transposed,
    [rank, out]. Both are contiguous, bf16 or fp32."""

    a: Tensor
    b: Tensor
    scale: float


def load_adapter(directory: str | Path, device: torch.device) -> dict[str, LowRankWeights]:
    """Returns an adapter's weights by the base's module. Raises OSError, and InvalidSource for files that do not
    fit."""
    path = Path(directory) / ADAPTER_WEIGHTS

    def side(module: str, side: str) -> Tensor:
        return _mapped(path, adapters.tensor_name(module, side)).to(device)

    return {
        each.module: LowRankWeights(
            side(each.module, "lora_A").clone(), side(each.module, "lora_B").T.contiguous(), each.scale
        )
        for each in adapters.read(Path(directory))
    }


def _mapped_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    for name, path in _names(directory):
        yield name, _mapped(path, name)


def _names(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.glob("*.safetensors")):
        if path.name in ADAPTER_FILES:
            continue
        with safe_open(path, framework="pt") as file:
            yield from ((name, path) for name in list(file.keys()))


def _mapped(path: Path, name: str) -> Tensor:
    """Returns a tensor that shares memory with the file's pages. It has its own mapping, so a freed tensor is
    unmapped."""
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def weight_bytes(model: nn.Module) -> int:
    """Returns the bytes of all distinct parameters and buffers, packed 8-bit weights included."""
    packed = sum(int(getattr(module, "nbytes", 0)) for module in model.modules())
    sizes = {tensor.data_ptr(): tensor.nbytes for _, tensor in _all_tensors(model)}
    return packed + sum(sizes.values())
