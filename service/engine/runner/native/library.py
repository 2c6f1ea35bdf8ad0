"""The library gives Python the built kernels. It knows pointers and shapes; no models, layers or requests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p, pointer
from functools import cache
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from models.weights.blocks import BLOCKS, BlockWeight
from models.weights.int4 import INT4, Int4Weight
from service import host
from service.engine.protocol.profiling import NamedPart
from service.engine.runner.memory import lazy_zeros
from service.engine.runner.native.arena import Arena
from service.engine.runner.native.build import COMMAND, LEVELS, await_build, library_path, preferred
from service.engine.runner.native.marks import Marks
from service.engine.runner.native.structs import AddedStruct, HeadsStruct, LinearStruct, ModelStruct, StepStruct

_ALIGNMENT = 64
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, INT4: 4, BLOCKS: 5}
WEIGHT_ONLY = 3
"""8-bit weights times rows that are not quantized."""
KEPT_WIDTH = 16
"""Outliers' weights are padded to whole vectors of this many outputs."""


class Library:
    """One loaded library. `level` is its instruction set, `build` the name of its file: level and hash of the sources.
    `activation_reach` is the largest code of a quantized row. `panel` is the number of outputs whose weights are packed
    together. `has_int4` says whether 4-bit weights can be."""

    def __init__(self, level: str, functions: ctypes.CDLL) -> None:
        self.level = level
        self.build = Path(functions._name).stem
        self.functions = functions
        self.arena: Arena | None = None
        """The place of packed weights while a model is loaded whose weights other processes map."""
        self.marks: Marks | None = None
        """Takes the times of a step's phases while a profile is made."""
        functions.dosirak_activation_reach.restype = c_int64
        self.activation_reach: int = functions.dosirak_activation_reach()
        functions.dosirak_panel.restype = c_int64
        self.panel: int = functions.dosirak_panel()
        self._packed_bytes = functions.dosirak_packed_bytes
        self._packed_bytes.restype = c_int64
        self._packed_bytes.argtypes = (c_int64, c_int64, c_int64, c_int64)
        self.has_int4 = bool(functions.dosirak_has_int4())
        self._pack = functions.dosirak_pack
        self._pack.restype = None
        self._pack.argtypes = (c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int)
        self._pack_int4 = functions.dosirak_pack_int4
        self._pack_int4.restype = None
        self._pack_int4.argtypes = (
            c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int,
        )  # fmt: skip
        self._block_panel_bytes = functions.dosirak_block_panel_bytes
        self._block_panel_bytes.restype = c_int64
        self._block_panel_bytes.argtypes = (c_int64, c_int64)
        self._pack_blocks = functions.dosirak_pack_blocks
        self._pack_blocks.restype = None
        self._pack_blocks.argtypes = (c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int)
        self._linear = functions.dosirak_linear
        self._linear.restype = None
        self._linear.argtypes = (POINTER(LinearStruct), c_void_p, c_int64, c_void_p, c_int)
        self._add = functions.dosirak_add
        self._add.restype = None
        self._add.argtypes = (
            POINTER(AddedStruct), c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_int,
        )  # fmt: skip
        self._attend = functions.dosirak_attend
        self._attend.restype = c_char_p
        self._attend.argtypes = (
            POINTER(HeadsStruct), c_void_p, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int,
        )  # fmt: skip
        self._step = functions.dosirak_step
        self._step.restype = c_char_p
        self._step.argtypes = (POINTER(ModelStruct), POINTER(StepStruct), c_int)
        self._cores = functions.dosirak_cores
        self._cores.restype = None
        self._cores.argtypes = (POINTER(c_int32), c_int)
        self._quantize = functions.dosirak_quantize
        self._quantize.restype = None
        self._quantize.argtypes = (c_void_p, c_int64, c_void_p, POINTER(c_float))
        self._hadamard = functions.dosirak_hadamard
        self._hadamard.restype = None
        self._hadamard.argtypes = (c_void_p, c_int64, c_int64)

    @property
    def parts(self) -> Seq[NamedPart]:
        """Returns the kernels that a profile names."""
        names = {"step": "step", "linear": "linear", "attend": "attention", "add": "adapter"}
        return [NamedPart(self, method, f"native::{name}") for method, name in names.items()]

    @contextmanager
    def packing_into(self, arena: Arena | None) -> Iterator[None]:
        """Packs weights into the arena meanwhile, if one is given."""
        self.arena = arena
        try:
            yield
        finally:
            self.arena = None

    def packed_bytes(self, kind: int, outputs: int, depth: int, group: int = 0) -> int:
        """Returns the bytes of the packed weights [outputs, depth] of a kind; `group` is of 4-bit weights."""
        size: int = self._packed_bytes(kind, outputs, depth, group)
        return size

    def pack(self, parts: Seq[Tensor | Int4Weight], kind: int) -> tuple[Tensor, Tensor]:
        """Packs the parts' weights [out, in], one below the other. Returns the form that the kernels of a kind read
        [bytes] uint8, and the sums that 8-bit and 4-bit kernels need too [out] int32. The parts are of one dtype: fp32,
        bf16, int8, or int4 in groups of one size."""
        depth, outputs = parts[0].shape[1], sum(len(part) for part in parts)
        group = parts[0].group if isinstance(parts[0], Int4Weight) else 0
        size = self.packed_bytes(kind, outputs, depth, group)
        packed, sums, is_packed = self._memory(f"{self.level} {kind} {outputs} {depth} {group}", size, outputs)
        if is_packed:
            return packed, sums
        at, threads = 0, torch.get_num_threads()
        for part in parts:
            to = (packed.data_ptr(), sums.data_ptr())
            if isinstance(part, Int4Weight):
                plain = [tensor.contiguous() for tensor in (part.codes, part.group_scale, part.group_base)]
                self._pack_int4(*to, *(each.data_ptr() for each in plain), len(part), depth, group, at, threads)
            else:
                weight = part.detach().contiguous()
                self._pack(kind, *to, weight.data_ptr(), len(part), depth, at, threads)
            at += len(part)
        return packed, sums

    def _memory(self, what: str, size: int, numbers: int) -> tuple[Tensor, Tensor, bool]:
        """Returns memory for packed weights [size] uint8 and int32 [numbers], all zeros; or those that another process
        has packed, and True."""
        if self.arena is None:
            return lazy_zeros((size,), torch.uint8, huge=True), torch.zeros(numbers, dtype=torch.int32), False
        start = -(-size // _ALIGNMENT) * _ALIGNMENT
        memory = self.arena.take(what, start + 4 * numbers)
        return memory[:size], memory[start:].view(torch.int32), not self.arena.is_owner

    def joins_blocks(self, parts: Seq[BlockWeight]) -> bool:
        """Whether each panel of these parts, one below the other, has one type."""
        return all(sum(map(len, run)) % self.panel == 0 for run in _runs(parts)[:-1])

    def pack_blocks(self, parts: Seq[BlockWeight]) -> tuple[Tensor, Tensor]:
        """Packs blocks, one below the other. Returns the form that the kernels read [bytes] uint8, and type and
        place of each panel as pairs of int64 in int32. Raises ValueError where `joins_blocks` says no."""
        if not self.joins_blocks(parts):
            raise ValueError("outputs of two types of blocks share a panel")
        depth, runs = parts[0].shape[1], _runs(parts)
        sizes = [self._block_panel_bytes(run[0].number, depth) for run in runs]
        panels = [-(-sum(map(len, run)) // self.panel) for run in runs]
        whole = sum(size * count for size, count in zip(sizes, panels, strict=True))
        names = "+".join(f"{run[0].type} {sum(map(len, run))}" for run in runs)
        packed, table, is_packed = self._memory(f"{self.level} {names} {depth}", whole, 4 * sum(panels))
        if is_packed:
            return packed, table
        places: list[tuple[int, int]] = []
        threads, begin = torch.get_num_threads(), 0
        for run, size, count in zip(runs, sizes, panels, strict=True):
            places += [(run[0].number, begin + size * panel) for panel in range(count)]
            at = 0
            for part in run:
                data = part.data.contiguous()
                to = packed.data_ptr() + begin
                self._pack_blocks(part.number, to, data.data_ptr(), len(part), depth, at, threads)
                at += len(part)
            begin += size * count
        table.view(torch.int64).view(-1, 2).copy_(torch.tensor(places))
        return packed, table

    def linear(self, layer: LinearStruct, rows: Tensor) -> Tensor:
        """Returns [n, outputs] fp32 of rows [n, depth]. Raises ValueError for rows of another depth."""
        if rows.shape[1:] != (layer.depth,):
            raise ValueError(f"rows of shape {tuple(rows.shape)} are given to a layer of depth {layer.depth}")
        x = rows.float().contiguous()
        y = torch.empty(len(x), layer.outputs)
        self._linear(layer, x.data_ptr(), len(x), y.data_ptr(), torch.get_num_threads())
        return y

    def add(self, added: AddedStruct, x: Tensor, middle: Tensor, y: Tensor) -> None:
        """Adds an adapter's share for rows x [n, depth] to y [n, outputs]. The adapter must fit the layer. `middle`
        [n, all ranks] is working memory."""
        rows, depth = x.shape
        tensors = (x.data_ptr(), depth, rows, middle.data_ptr(), y.data_ptr(), y.shape[1])
        self._add(added, *tensors, torch.get_num_threads())

    def attend(self, heads: HeadsStruct, sequences: Tensor, tables: Tensor, query: Tensor) -> Tensor:
        """Returns [rows, heads, value_dim] fp32 for query [rows, heads, key_dim]. Rows outside of `sequences` [n, 4]
        get zeros. Raises ValueError for rows, positions and blocks that do not exist."""
        if query.shape[1:] != (heads.heads, heads.key_dim):
            raise ValueError(f"no heads for a query of shape {tuple(query.shape)}")
        q = query.float().contiguous()
        out = torch.zeros(len(q), heads.heads, heads.value_dim)
        where = (address(sequences), len(sequences), address(tables), len(tables))
        _check(self._attend(heads, *where, len(q), q.data_ptr(), out.data_ptr(), torch.get_num_threads()))
        return out

    def step(self, model: ModelStruct, step: StepStruct) -> None:
        """Writes the step's keys, values and logits. Raises ValueError, and writes nothing, for a step that names token
        ids, positions, blocks, rows or adapters that do not exist."""
        if self.marks is not None:
            step.marks = pointer(self.marks.struct)
        _check(self._step(model, step, torch.get_num_threads()))

    def cores(self, threads: int) -> list[int]:
        """Returns the core of each thread of a step; -1 if it is unknown."""
        found = (c_int32 * threads)()
        self._cores(found, threads)
        return list(found)

    def quantize(self, row: Tensor) -> tuple[Tensor, float]:
        """Returns codes relative to zero, int32, and the scale of one fp32 row, as the 8-bit layers compute them."""
        codes, scale = torch.empty(len(row), dtype=torch.int32), c_float()
        self._quantize(row.contiguous().data_ptr(), len(row), codes.data_ptr(), scale)
        return codes, scale.value

    def hadamard(self, row: Tensor, block: int) -> Tensor:
        """Returns the Hadamard transform of one row, fp32 [n], as the layers compute it (see
        `models.weights.hadamard`)."""
        mixed = row.float().clone()
        self._hadamard(mixed.data_ptr(), len(mixed), block)
        return mixed


def _runs(parts: Seq[BlockWeight]) -> list[list[BlockWeight]]:
    """Returns neighbours of one type together."""
    return [list(run) for _, run in groupby(parts, lambda part: part.type)]


def _check(reason: bytes | None) -> None:
    if reason is not None:
        raise ValueError(f"the kernels refuse the step: {reason.decode()}")


def open_library(level: str, sanitized: bool = False) -> Library | str | None:
    """Returns the built library of an instruction set, or the reason why it cannot be used here. Returns None if it is
    not built, or is built for another processor. Sanitized libraries (see `build`) are for tests."""
    path = library_path(level, sanitized)
    if not path.exists():
        return None
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return Library(level, functions) if functions.dosirak_supported() else None


@cache
def load() -> Library | str:
    """Returns the fastest built library for this processor, or the reason why there is none. It loads torch's OpenMP
    first, so that both share one team of threads."""
    if not _any_built():
        return f"not built, run {COMMAND}"
    reasons = []
    for level in preferred(host.processor_vendor()):
        opened = open_library(level)
        if isinstance(opened, Library):
            return opened
        reasons.append(opened)
    return "; ".join(filter(None, reasons)) or "not built for this processor"


def _any_built() -> bool:
    """Whether there is a library; where there is none yet, once a build that runs has ended."""
    if any(library_path(level).exists() for level in LEVELS):
        return True
    await_build()
    return any(library_path(level).exists() for level in LEVELS)


def library() -> Library | None:
    """Returns the kernels, or None if torch operations must serve."""
    loaded = load()
    return loaded if isinstance(loaded, Library) else None


def unavailable() -> str | None:
    """Returns the reason why there are no kernels, or None."""
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def address(tensor: Tensor | None) -> int | None:
    """Returns the address of a contiguous CPU tensor's elements. The caller keeps the tensor alive."""
    if tensor is None:
        return None
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("kernels read contiguous CPU tensors only")
    return tensor.data_ptr()
