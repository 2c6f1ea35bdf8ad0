"""The seq2seq forward runs encoder-decoder models with the library's own modules over our KV blocks.

It knows what such a model passes to its attention, and no architecture by name. A load finds out what does not fit. The
encoder runs once for each sequence, whole and alone, so its output does not depend on the batch. The decoder layers'
keys and values of that output lie at the front of the sequence's blocks. The decoder runs once for all sequences:

    rows of the decoder  | a | b | c c | d |  self-attention: each row over its own positions up to itself
                                              cross-attention: each row over all of its sequence's encoded positions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from models.weights.loading import LowRankWeights
from service.engine.runner.forwards.attention import AttentionPlan, AttentionSpec, DistanceBias, SequenceRows
from service.engine.runner.forwards.foreign import LayerInBlocks, replace_linears
from service.engine.runner.forwards.forward import CannotServe, vocab_size_of
from service.engine.runner.forwards.step import Encoded, Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.library import library
from service.engine.runner.row_blocks import LAST_RESORT

INTERFACE = "dosirak-seq2seq"
CALL_ARGUMENT = "dosirak_call"


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Serves as the library's attention function: query, key and value [1, heads, rows, dim] to [1, rows, heads, dim].
    Raises CannotServe for any option that our attention does not compute."""
    call = kwargs.get(CALL_ARGUMENT)
    if call is None:
        raise CannotServe("the architecture does not pass keyword arguments on to its attention")
    if attention_mask is not None or any(kwargs.get(name) is not None for name in ("s_aux", "softcap", "head_mask")):
        raise CannotServe("its attention takes a mask or numbers of its own")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed: Tensor = call.attend(getattr(module, "layer_idx", None), query, key, value, scale, position_bias)
    return mixed, None


class _Whole:
    """The encoder's attention: every row sees every row. It computes in fp32, as the library does."""

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None
    ) -> Tensor:
        scores = torch.matmul(query.float(), key.float().transpose(2, 3)) * scale
        scores = scores if bias is None else scores + bias.float()
        return torch.matmul(scores.softmax(-1), value.float()).to(query.dtype).transpose(1, 2)


class _Observed:
    """Notes what each decoder layer adds to the scores by distance, and computes nothing. It shows the library a single
    key, at position 0. So the row at position d gets the addition for distance d."""

    def __init__(self) -> None:
        self.biases: dict[int, DistanceBias] = {}

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None
    ) -> Tensor:
        if bias is not None and layer is not None and layer not in self.biases and bool(bias.any()):
            if bias.shape[0] != 1 or bias.shape[2:] != (query.shape[2], 1):
                raise CannotServe(f"its attention adds a bias of shape {tuple(bias.shape)}")
            self.biases[layer] = DistanceBias(bias[0, :, :, 0])
        return query.transpose(1, 2)


@dataclass(slots=True)
class _Decoding:
    """One step of the decoder. `own` are its rows. `cross` are the same rows, each with a view of all encoded
    positions. `encoded` are the rows of the encoder's output that this step computed, or None."""

    own: AttentionPlan
    cross: AttentionPlan
    encoded: AttentionPlan | None
    biases: dict[int, DistanceBias]

    def keep(self, layer: int, crosses: bool, key: Tensor, value: Tensor) -> None:
        plan = self.encoded if crosses else self.own
        if plan is not None:
            plan.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None
    ) -> Tensor:
        if layer is None:
            raise CannotServe("its attention layers carry no index")
        rows = query[0].transpose(0, 1)
        if key is CROSS:
            return self.cross.look(layer, rows, AttentionSpec(scale))[None]
        return self.own.look(layer, rows, AttentionSpec(scale, bias=self.biases.get(layer)))[None]


OWN, CROSS = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
"""The library sees these as a layer's keys and values and reads only their number, 1. The real ones are in the
blocks."""


class _Layer(LayerInBlocks):  # type: ignore[no-untyped-call]
    """A layer of the library's cache that puts its input where `call` keeps it."""

    def __init__(self, layer: int, crosses: bool, call: _Decoding | None) -> None:
        super().__init__()
        self.layer, self.crosses, self.call = layer, crosses, call
        self.seen = self.keys = self.values = CROSS if crosses else OWN

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Takes keys and values [1, heads, rows, dim]."""
        if self.call is not None:
            self.call.keep(self.layer, self.crosses, key_states, value_states)
        return self.seen, self.seen

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class Seq2SeqForward:
    """A forward whose rows do not depend on the batch: linear layers' rows are padded or native, and attention computes
    each sequence by itself."""

    kind = "transformers"
    attends = True
    invariant = True
    no_states = "it has an encoder, so no hidden states of its prompt pass its decoder"

    def __init__(self, model: transformers.PreTrainedModel, cache: KVCache, max_positions: int) -> None:
        """`max_positions` of the decoder. Raises CannotServe."""
        kernels = library()
        if kernels is not None and model.device.type == "cpu":
            replace_linears(model, kernels)
        transformers.AttentionInterface.register(INTERFACE, _attention)
        model.set_attn_implementation(INTERFACE)
        self.model = model
        self.vocab_size = vocab_size_of(model)
        self._cache = cache
        self._encoder: Any = model.get_encoder()
        self._positions = torch.zeros(0, dtype=torch.long, device=cache.device)
        self._give_positions()
        self._biases = self._observe_biases(2) and self._observe_biases(max_positions)

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        raise CannotServe("an encoder-decoder model takes no adapters: its layers are given other rows than the step's")

    def unload_adapter(self, name: str) -> None:
        """Does nothing: these models have no adapters."""

    @torch.inference_mode()
    def __call__(self, step: Step) -> Tensor:
        new = [each for each in step.encoded if each.token_ids]
        states, encoded = self._encode(new) if new else (self._nothing(), None)
        call = _Decoding(step.plan, _cross(step, self._cache), encoded, self._biases)
        return self._decode(step.token_ids, step.positions, states, call)[step.logit_rows]

    def _encode(self, new: list[Encoded]) -> tuple[Tensor, AttentionPlan]:
        """Returns the encoder's outputs side by side [1, rows, hidden], and their places."""
        device, row = self._cache.device, 0
        parts, sequences = [], []
        for each in new:
            token_ids = torch.tensor([each.token_ids], device=device)
            parts.append(self._encoder(input_ids=token_ids, **{CALL_ARGUMENT: _Whole()}).last_hidden_state)
            sequences.append(SequenceRows(row, each.count, 0, each.block_table))
            row += each.count
        padding = -row % LAST_RESORT.quantum  # a multiple of every quantum
        states = nn.functional.pad(torch.cat(parts, dim=1), (0, 0, 0, padding))
        return states, AttentionPlan(self._cache, sequences, row + padding, 1, device)

    def _decode(self, token_ids: Tensor, positions: Tensor, states: Tensor, call: _Decoding | _Observed) -> Tensor:
        """Returns logits [rows, vocabulary]."""
        known = call if isinstance(call, _Decoding) else None
        layers = range(len(self._cache.shapes))
        kept = EncoderDecoderCache(
            *(Cache(layers=[_Layer(i, crosses, known) for i in layers]) for crosses in (False, True))
        )
        kept.is_updated = dict.fromkeys(layers, known is not None and known.encoded is None)
        self._positions = positions
        logits: Tensor = self.model(
            decoder_input_ids=token_ids[None],
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            past_key_values=kept,
            use_cache=True,
            **{CALL_ARGUMENT: call},
        ).logits
        return logits[0]

    def _nothing(self) -> Tensor:
        """Returns a stand-in for the encoder's output; no row is computed from it."""
        embedding: Any = self.model.get_input_embeddings()
        return embedding.weight.new_zeros(1, 1, embedding.weight.shape[1])  # type: ignore[no-any-return]

    def _give_positions(self) -> None:
        """Gives a decoder that embeds positions those of the step's rows, because the library counts from 0."""
        decoder = self.model.get_decoder()  # type: ignore[no-untyped-call]
        embedding = getattr(decoder, "embed_positions", None)
        if isinstance(embedding, nn.Module):
            embedding.register_forward_pre_hook(self._with_positions, with_kwargs=True)

    def _with_positions(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if "position_ids" not in kwargs:
            raise CannotServe("its decoder embeds positions that it is not told")
        position_ids = kwargs["position_ids"]
        return args, kwargs | {"position_ids": self._positions.view(position_ids.shape)}

    @torch.inference_mode()
    def _observe_biases(self, count: int) -> dict[int, DistanceBias]:
        call = _Observed()
        zeros = torch.zeros(count, dtype=torch.long, device=self._cache.device)
        self._decode(zeros, zeros, self._nothing(), call)
        return call.biases


def _cross(step: Step, cache: KVCache) -> AttentionPlan:
    """Returns the rows as if each stood at the last encoded position, so that it sees all of them."""
    sequences = [
        SequenceRows(row, 1, encoded.count - 1, encoded.block_table)
        for sequence, encoded in zip(step.sequences, step.encoded, strict=True)
        for row in range(sequence.row, sequence.row + sequence.count)
    ]
    return AttentionPlan(cache, sequences, len(step.token_ids), step.plan.row_quantum, cache.device)
