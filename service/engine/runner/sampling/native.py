"""Drawing and logprobs by the native kernels: the results are those of `TorchSampling`. Knows rows and sampling
parameters; no logits processors."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from service.engine.protocol.messages import TokenLogprobs
from service.engine.protocol.profiling import NamedPart
from service.engine.runner.native.library import Library, address
from service.engine.runner.sampling.filters import is_native
from service.engine.runner.sampling.reference import TorchSampling, logprobs_of
from service.engine.runner.sampling.row import SamplerRow


class DrawStruct(Structure):
    _fields_ = (
        ("scores", c_void_p),
        ("vocabulary", c_int64),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_float),
        ("inverse_temperature", c_float),
        ("point", c_int64),
        ("token", c_int64),
    )


class LogprobStruct(Structure):
    _fields_ = (
        ("scores", c_void_p),
        ("vocabulary", c_int64),
        ("token", c_int64),
        ("count", c_int64),
        ("score", c_float),
        ("largest", c_float),
        ("mass", c_int64),
        ("ids", c_void_p),
        ("values", c_void_p),
    )


class MaskStruct(Structure):
    _fields_ = (("logits", c_void_p), ("bits", c_char_p), ("vocabulary", c_int64))


class PenaltyStruct(Structure):
    _fields_ = (
        ("logits", c_void_p),
        ("ids", c_void_p),
        ("output", c_void_p),
        ("count", c_int64),
        ("repetition", c_float),
        ("frequency", c_float),
        ("presence", c_float),
    )


class NativeSampling:
    """Each row [vocabulary] is computed by one thread. Rows with a filter that the kernels lack go through torch."""

    def __init__(self, kernels: Library) -> None:
        self._penalize = kernels.functions.dosirak_penalize
        self._penalize.restype = None
        self._penalize.argtypes = (POINTER(PenaltyStruct), c_int64, c_int)
        self._mask = kernels.functions.dosirak_mask
        self._mask.restype = None
        self._mask.argtypes = (POINTER(MaskStruct), c_int64, c_int)
        self._draw = kernels.functions.dosirak_draw
        self._draw.restype = None
        self._draw.argtypes = (POINTER(DrawStruct), c_int64, c_int)
        self._logprobs = kernels.functions.dosirak_logprobs
        self._logprobs.restype = None
        self._logprobs.argtypes = (POINTER(LogprobStruct), c_int64, c_int)
        self._torch = TorchSampling()

    @property
    def parts(self) -> Seq[NamedPart]:
        """Returns the kernels that a profile names."""
        return [NamedPart(self, method, f"native::{method}") for method in ("penalize", "mask", "draw", "logprobs")]

    def penalize(self, logits: Seq[Tensor], rows: Seq[SamplerRow]) -> None:
        """In place, by the counts that every one of these rows has."""
        structs = (PenaltyStruct * len(rows))(*map(_penalty_struct, logits, rows))
        self._penalize(structs, len(rows), torch.get_num_threads())

    def mask(self, logits: Seq[Tensor], masks: Seq[bytes]) -> None:
        """In place: minus infinity where a row's mask has no bit. A mask has whole words, and a bit for each logit."""
        if any(len(mask) % 4 or 8 * len(mask) < len(row) for row, mask in zip(logits, masks, strict=True)):
            raise ValueError("a mask that is shorter than its row, or of no whole words")
        rows = (MaskStruct(address(row), mask, len(row)) for row, mask in zip(logits, masks, strict=True))
        self._mask((MaskStruct * len(masks))(*rows), len(masks), torch.get_num_threads())

    def draw(self, scores: Seq[Tensor], rows: Seq[SamplerRow]) -> list[int]:
        """One token for each row; -1 where it holds no usable number."""
        has_kernel = [row.is_greedy or is_native(row.params) for row in rows]
        native = [i for i, has in enumerate(has_kernel) if has]
        others = [i for i, has in enumerate(has_kernel) if not has]
        structs = (DrawStruct * len(native))(*(_draw_struct(scores[i], rows[i]) for i in native))
        self._draw(structs, len(native), torch.get_num_threads())
        tokens = dict(zip(native, (struct.token for struct in structs), strict=True))
        drawn = self._torch.draw([scores[i] for i in others], [rows[i] for i in others])
        tokens.update(zip(others, drawn, strict=True))
        return [tokens[i] for i in range(len(rows))]

    def logprobs(self, logits: Seq[Tensor], tokens: Seq[int], tops: Seq[int]) -> list[TokenLogprobs | None]:
        """Of each row's token, and of as many of its likeliest; None where the row holds no usable number."""
        most = max(tops, default=0)
        ids, values = torch.empty(len(tokens), most, dtype=torch.int64), torch.empty(len(tokens), most)
        structs = (LogprobStruct * len(tokens))(
            *(
                LogprobStruct(address(row), len(row), token, top, ids=_at(ids, i), values=_at(values, i))
                for i, (row, token, top) in enumerate(zip(logits, tokens, tops, strict=True))
            )
        )
        self._logprobs(structs, len(tokens), torch.get_num_threads())
        return [
            None
            if math.isnan(one.largest)
            else logprobs_of(one.score, one.largest, one.mass, row_ids[: one.count], row_values[: one.count])
            for one, row_ids, row_values in zip(structs, ids.tolist(), values.tolist(), strict=True)
        ]


def _penalty_struct(logits: Tensor, row: SamplerRow) -> PenaltyStruct:
    p, counts = row.params, row.counts
    assert counts is not None
    ids, output = counts.token_ids.buffer_info()[0], counts.output_counts.buffer_info()[0]
    penalties = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
    return PenaltyStruct(address(logits), ids, output, len(counts.token_ids), *penalties)


def _draw_struct(scores: Tensor, row: SamplerRow) -> DrawStruct:
    p = row.params
    if row.is_greedy:
        return DrawStruct(address(scores), len(scores))
    return DrawStruct(address(scores), len(scores), p.top_k, p.top_p, p.min_p, 1.0 / p.temperature, row.point)


def _at(table: Tensor, row: int) -> int:
    return table.data_ptr() + row * table.stride(0) * table.element_size()
