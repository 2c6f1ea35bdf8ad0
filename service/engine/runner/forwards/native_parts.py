"""The parts of a native step: its embedding, layers and head, each computed by itself. It knows rows, no tokens."""

from __future__ import annotations

from ctypes import Array, pointer
from typing import Protocol

import torch
from torch import Tensor

from service.engine.runner.forwards.step import Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.library import KINDS, address
from service.engine.runner.native.linear import NativeLinear
from service.engine.runner.native.structs import LayerStruct, ModelStruct, NormStruct


class Decoder(Protocol):
    """What is asked of the decoder whose parts these are."""

    head: NativeLinear

    def model_struct(self) -> ModelStruct: ...

    def layer_structs(self, cache: KVCache) -> Array[LayerStruct]: ...

    def run(self, model: ModelStruct, step: Step, token_ids: Tensor, logits: Tensor, state_rows: Tensor) -> Tensor: ...


class Parts:
    """Computes a step part by part, each from given rows fp32 [rows, hidden]: for the probe, one layer after the other
    with the decoder's own weights."""

    def __init__(self, decoder: Decoder, step: Step) -> None:
        self._decoder, self._step = decoder, step
        self._layers = decoder.layer_structs(step.plan.cache)
        self._every_row = torch.arange(len(step.token_ids))

    def embedded(self) -> Tensor:
        """Returns the rows that the first layer reads."""
        return self._states(self._model(0, 0), self._step.token_ids)

    def layer(self, index: int, rows: Tensor) -> Tensor:
        """Returns what a layer makes of the rows before it, and writes their keys and values."""
        return self._states(self._model(index, 1, rows.contiguous()), self._every_row)

    def logits(self, rows: Tensor) -> Tensor:
        """Returns the logits of the step for the rows behind the last layer."""
        logits = torch.empty(len(self._step.logit_rows), self._decoder.head.out_features)
        self._decoder.run(self._model(0, 0, rows.contiguous()), self._step, self._every_row, logits, self._every_row)
        return logits

    def _states(self, model: ModelStruct, token_ids: Tensor) -> Tensor:
        model.final_norm = NormStruct()  # so states are the rows as they are
        return self._decoder.run(model, self._step, token_ids, torch.empty(0, 0), self._every_row)

    def _model(self, first: int, count: int, rows: Tensor | None = None) -> ModelStruct:
        """Returns the model with `count` layers; with `rows` as its embedding, one for each number of a row."""
        model = self._decoder.model_struct()
        model.layers, model.layer = count, pointer(self._layers[first])
        if rows is not None:
            model.vocabulary, model.embedding, model.embedding_kind = len(rows), address(rows), KINDS[rows.dtype]
            model.embedding_scale = 1.0
            self._rows = rows  # lives as long as the model is used
        return model
