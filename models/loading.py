"""A version's directory → a model ready to compute, in fp32, bf16 or 8-bit. Knows files; nothing of requests or steps.

Imports transformers only inside functions: it takes longer than the weights of a small model.

8-bit files hold, for each linear layer, `<module>.weight` int8 [out, in] and `<module>.weight_scale` fp32 [out]; the
rest is bf16. Such a model is built without memory (meta device) and its tensors are mapped from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

if TYPE_CHECKING:
    import transformers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SCALE_SUFFIX = ".weight_scale"

Int8Factory = Callable[[Tensor, Tensor, Tensor | None], nn.Module]
"""(weight int8 [out, in], scale fp32 [out], bias or None) → the layer that multiplies by them."""


def resolve_device(device: str) -> torch.device:
    """ "auto" is CUDA where there is one, else the CPU."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def load_model(
    directory: str | Path, precision: str, dtype: torch.dtype, device: torch.device, int8_linear: Int8Factory
) -> transformers.PreTrainedModel:
    """The model in evaluation mode on `device`. `precision` "int8" reads 8-bit files, anything else
    converts to `dtype`. Raises OSError or ValueError when files are missing or do not fit the config."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers.utils.logging.set_verbosity_warning()  # type: ignore[no-untyped-call]
    if precision == "int8":
        model = _load_int8(Path(directory), dtype, device, int8_linear)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(directory),
            dtype=dtype,
            device_map={"": device},
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.train(False)
    return model


def _load_int8(
    directory: Path, dtype: torch.dtype, device: torch.device, int8_linear: Int8Factory
) -> transformers.PreTrainedModel:
    import transformers

    config = transformers.AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    _fill_buffers(model)
    tensors = dict(_mapped_tensors(directory))
    for name in [key.removesuffix(SCALE_SUFFIX) for key in tensors if key.endswith(SCALE_SUFFIX)]:
        weight, scale = tensors.pop(f"{name}.weight"), tensors.pop(name + SCALE_SUFFIX)
        bias = tensors.pop(f"{name}.bias", None)
        layer = int8_linear(weight.to(device), scale.to(device), None if bias is None else bias.to(device, dtype))
        model.set_submodule(name, layer)
    state = {name: _as(tensor, dtype) for name, tensor in tensors.items()}
    unexpected = model.load_state_dict(state, strict=False, assign=True).unexpected_keys
    missing = [name for name, tensor in _all_tensors(model) if tensor.is_meta]
    if missing or unexpected:
        raise ValueError(f"8-bit files do not fit the config: missing {missing[:3]}, unexpected {unexpected[:3]}")
    model.to(device)  # type: ignore[arg-type]
    return model


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _fill_buffers(model: transformers.PreTrainedModel) -> None:
    """Computes the buffers that no file holds (rotary frequencies, embedding scales): on the meta device they have no
    values, and a model with arbitrary ones speaks plausible nonsense. The library's own initialiser fills them; the
    parameters are still without memory here, so nothing is drawn at random."""
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
    """A version's tensors by the names in its files, without a model around them. Both methods raise KeyError for names
    that no file holds."""

    def __init__(self, directory: str | Path, dtype: torch.dtype) -> None:
        """Raises OSError for files that cannot be read. Floating point tensors but scales are given in `dtype`."""
        self._paths = dict(_names(Path(directory)))
        self._dtype = dtype

    def linear(self, name: str) -> Any:
        """A linear layer's `weight` [out, in], `bias` [out] or None and, where the weight is 8-bit, `scale` [out]."""
        scale, bias = name + SCALE_SUFFIX, f"{name}.bias"
        layer = SimpleNamespace(
            weight=self.tensor(f"{name}.weight"), bias=self.tensor(bias) if bias in self._paths else None
        )
        if layer.weight.dtype is torch.int8:
            layer.scale = _mapped(self._paths[scale], scale)
        return layer

    def tensor(self, name: str) -> Tensor:
        return _as(_mapped(self._paths[name], name), self._dtype)


def _mapped_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    for name, path in _names(directory):
        yield name, _mapped(path, name)


def _names(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            yield from ((name, path) for name in list(file.keys()))


def _mapped(path: Path, name: str) -> Tensor:
    """A tensor that shares memory with the file's pages, by a mapping of its own: what is let go is unmapped."""
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all distinct parameters and buffers, packed 8-bit weights included."""
    packed = sum(int(getattr(module, "nbytes", 0)) for module in model.modules())
    sizes = {tensor.data_ptr(): tensor.nbytes for _, tensor in _all_tensors(model)}
    return packed + sum(sizes.values())
