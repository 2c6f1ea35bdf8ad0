"""AWQ and GPTQ checkpoints pack several integer weights of a linear layer into one 32-bit word. `unpack` turns them
into plain weights in bf16, so that they are imported like any others.

    AWQ    qweight int32 [in, out / 8]    a word holds outputs 0 2 4 6 1 3 5 7 of its eight, from the lowest bits on
    GPTQ   qweight int32 [in / n, out]    a word holds n inputs in their order, n = 32 / bits
    both   qzeros int32 [groups, out / n], scales fp16 [groups, out]; weight = (code - zero) * scale, of its group
    GPTQ   g_idx int32 [in], the group of each input; zeros are stored less 1, except as `gptq_v2`: GPTQModel takes
           0x11111111 from the whole word, so that a zero of 0 borrows from the next. Weights are symmetric where all
           zeros are 8 (of 4 bits): a word tells then which way it is stored, whatever the checkpoint says of itself

Lin et al. 2023 (AWQ), Frantar et al. 2022 (GPTQ); layouts of AutoAWQ's `gemm` and of AutoGPTQ. MXFP4, of gpt-oss, is
in `mxfp4`; 8-bit floating numbers are in `fp8`, compressed-tensors' integers in `pack_quantized`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from models.checkpoint.config_policy import FP8_METHODS, MXFP4, PACKING, as_text, read_json
from models.checkpoint.safetensors_file import FLOATS, INDEX, Tensor, read_headers
from models.errors import InvalidSource
from models.imports import fp8, mxfp4, pack_quantized
from models.progress import Progress

if TYPE_CHECKING:
    import torch

_PARTS: Final = (".qweight", ".qzeros", ".scales", ".g_idx")
_WORD: Final = (1 << 32) - 1
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack(directory: Path, progress: Progress) -> tuple[str, dict[str, str]]:
    """Rewrites the weights and `config.json` in `directory`. Returns what an import notes of it, and the sha256 of the
    new files by name. Raises InvalidSource for a form that is not read, and for tensors that do not fit."""
    from models.weights.conversion import PLAIN_FORMAT, write_shards

    config: dict[str, Any] = read_json(directory / "config.json")
    old = sorted(directory.glob("*.safetensors"))
    meant: Any = read_json(directory / INDEX)["weight_map"] if (directory / INDEX).exists() else {}
    headers = read_headers(old, packed=True)
    found = [(tensor, path) for path in old for tensor in headers[path.name]]
    stored = {each.name: (each, path) for each, path in found if meant.get(each.name, path.name) == path.name}
    packed, form = _packed(config, stored)
    planned = [each.planned for each in packed.values()]
    parts = {part for each in packed.values() for part in each.parts}
    unused = fp8.UNUSED if config[PACKING]["quant_method"] in FP8_METHODS else ()
    for name, (tensor, _) in stored.items():
        if name not in parts and not name.endswith(unused):
            planned.append(Tensor(name, "BF16" if tensor.dtype in FLOATS else tensor.dtype, tensor.shape))

    def content(name: str) -> memoryview:
        import torch

        from models.weights.conversion import bytes_of, converted, read

        if name in packed:
            return bytes_of(packed[name].weight().to(torch.bfloat16))
        return converted(lambda name: read(stored[name][1], name), torch.bfloat16, name)

    new = directory / "unpacked"
    new.mkdir()
    hashes = write_shards(new, sorted(planned, key=lambda tensor: tensor.name), content, progress, PLAIN_FORMAT)
    for path in [*old, directory / INDEX]:
        path.unlink(missing_ok=True)
    for path in list(new.iterdir()):
        path.rename(directory / path.name)
    new.rmdir()
    (directory / "config.json").write_text(as_text({key: value for key, value in config.items() if key != PACKING}))
    return f"{form}, {len(packed)} tensors unpacked", hashes


class Packed(Protocol):
    """A tensor to unpack: what is planned to be written, the names of its parts, and its values."""

    @property
    def planned(self) -> Tensor: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    def weight(self) -> torch.Tensor: ...


def _packed(config: Mapping[str, object], stored: Mapping[str, tuple[Tensor, Path]]) -> tuple[dict[str, Packed], str]:
    """Returns the packed tensors by the names of what they become, and their form in words. Raises InvalidSource if
    there are none."""
    quantization: Any = config[PACKING]
    if quantization.get("format") == pack_quantized.FORMAT:
        words = pack_quantized.form_of(quantization)
        layers = sorted(name.removesuffix(pack_quantized.SUFFIX) for name in stored if pack_quantized.SUFFIX in name)
        if not layers:
            raise InvalidSource(f"config.json says {pack_quantized.FORMAT}, but no tensor is called weight_packed")
        unpacked: dict[str, Packed] = {f"{name}.weight": pack_quantized.Words(name, stored, words) for name in layers}
        return unpacked, f"{pack_quantized.FORMAT} of {words[0]} bits"
    if quantization["quant_method"] in FP8_METHODS:
        block = fp8.block_of(quantization)
        in_fp8 = [name for name in sorted(stored) if fp8.is_fp8(name, stored[name][0])]
        scaled: dict[str, Packed] = {name: fp8.Scaled(name, stored, block) for name in in_fp8}
        if not scaled:
            raise InvalidSource(f"config.json says {quantization['quant_method']}, but no tensor is in FP8")
        return scaled, "fp8"
    is_mxfp4 = quantization["quant_method"] == MXFP4
    suffix = mxfp4.SUFFIX if is_mxfp4 else ".qweight"
    names = sorted(name.removesuffix(suffix) for name in stored if name.endswith(suffix))
    if not names:
        raise InvalidSource(f"config.json says {quantization['quant_method']}, but no tensor is called {suffix[1:]}")
    if is_mxfp4:
        return {name: mxfp4.Blocks(name, stored) for name in names}, MXFP4
    form = _Form.of(config)
    made: dict[str, Packed] = {f"{name}.weight": _Packed(name, stored, form) for name in names}
    return made, f"{form.method} of {form.bits} bits in groups of {form.group}"


@dataclass(frozen=True, slots=True)
class _Form:
    """How codes are packed. `group` is -1 for one group of all inputs; `less` is what stored zeros lack, unless the
    weights `may_be_symmetric` and their zeros say otherwise."""

    method: str
    bits: int
    group: int
    less: int
    may_be_symmetric: bool

    @classmethod
    def of(cls, config: Mapping[str, object]) -> _Form:
        quantization: Any = config[PACKING]
        method, bits = str(quantization["quant_method"]), quantization.get("bits", quantization.get("w_bit"))
        group = quantization.get("group_size", quantization.get("q_group_size", 128))
        is_size = isinstance(group, int) and (group == -1 or group > 0)
        if bits not in ((4,) if method == "awq" else (4, 8)) or not is_size:
            raise InvalidSource(f"{PACKING}: {method} of {bits!r} bits in groups of {group!r} is not read; 4 bits are")
        version = str(quantization.get("version") or "gemm").lower()
        if method == "awq" and version != "gemm":
            raise InvalidSource(f"{PACKING}: AWQ in the form {version[:40]!r} is not read; 'gemm' is")
        is_second = quantization.get("checkpoint_format") == "gptq_v2"
        is_gptq = method == "gptq"
        return cls(
            method, int(bits), group, int(is_gptq and not is_second), is_gptq and quantization.get("sym") is not False
        )

    def words(self, code: int) -> int:
        """Returns the word whose codes are all `code`."""
        return sum(code << at for at in range(0, 32, self.bits))

    def whole_zeros(self, stored: torch.Tensor) -> torch.Tensor:
        """Returns words of zeros as they are meant, int32 as `stored`."""
        import torch

        words, less, middle = stored.long() & _WORD, self.less, 1 << (self.bits - 1)
        if self.may_be_symmetric:
            less = next((each for each in (0, 1) if bool((words == self.words(middle - each)).all())), less)
        words = (words + self.words(less)) & _WORD
        return torch.where(words > _WORD >> 1, words - (_WORD + 1), words).int()


class _Packed:
    """One linear layer. Raises InvalidSource for tensors that are missing or do not fit each other."""

    def __init__(self, layer: str, stored: Mapping[str, tuple[Tensor, Path]], form: _Form) -> None:
        self._layer, self._stored, self._form = layer, stored, form
        codes, zeros, scales = (self._header(part) for part in _PARTS[:3])
        per_word = 32 // form.bits
        rows, columns = codes.shape if len(codes.shape) == 2 else (0, 0)
        inputs, outputs = (rows, columns * per_word) if form.method == "awq" else (rows * per_word, columns)
        groups = 1 if form.group == -1 else -(-inputs // form.group)
        fits = scales.shape == (groups, outputs) and zeros.shape == (groups, outputs // per_word) and outputs > 0
        if not fits or codes.dtype != "I32" or zeros.dtype != "I32" or scales.dtype not in FLOATS:
            raise InvalidSource(f"{layer}: qweight, qzeros and scales do not fit each other in groups of {form.group}")
        self.planned = Tensor(f"{layer}.weight", "BF16", (outputs, inputs))
        self.parts = tuple(layer + part for part in _PARTS if layer + part in stored)
        self._groups = groups

    def weight(self) -> torch.Tensor:
        """Returns fp32 [out, in]."""
        from models.weights.conversion import finite

        bits, codes = self._form.bits, self._read(".qweight")
        zeros = pack_quantized.unpacked(self._form.whole_zeros(self._read(".qzeros")), bits)
        if self._form.method == "awq":
            codes, zeros = self._ordered(pack_quantized.unpacked(codes, bits)), self._ordered(zeros)
        else:
            codes = pack_quantized.unpacked(codes.T.contiguous(), bits).T
        group = self._group_of_inputs(self.planned.shape[1])
        if int(group.min()) < 0 or int(group.max()) >= self._groups:
            raise InvalidSource(f"{self._layer}.g_idx names a group that there is not")
        scales = finite(f"{self._layer}.scales", self._read(".scales").float())
        exact = (codes - zeros[group]).float() * scales[group]
        return exact.T.contiguous()

    def _group_of_inputs(self, inputs: int) -> torch.Tensor:
        import torch

        if f"{self._layer}.g_idx" in self._stored:
            if self._header(".g_idx").shape != (inputs,):
                raise InvalidSource(f"{self._layer}.g_idx has not one group for each of {inputs} inputs")
            return self._read(".g_idx").long()
        return torch.arange(inputs) // (inputs if self._form.group == -1 else self._form.group)

    def _ordered(self, codes: torch.Tensor) -> torch.Tensor:
        """Puts AWQ's outputs into their order."""
        import torch

        places = torch.tensor([_AWQ_ORDER.index(at) for at in range(len(_AWQ_ORDER))])
        return codes.view(len(codes), -1, len(_AWQ_ORDER))[:, :, places].flatten(1)

    def _header(self, part: str) -> Tensor:
        if self._layer + part not in self._stored:
            raise InvalidSource(f"{self._layer}{part} is missing: {self._form.method} needs it beside qweight")
        return self._stored[self._layer + part][0]

    def _read(self, part: str) -> torch.Tensor:
        from models.weights.conversion import read

        return read(self._stored[self._layer + part][1], self._layer + part)
