"""Wrong readings of a model: outlines and blueprints that each forget or mistake one thing. A probe must refuse all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from service.engine.runner.forwards.blueprint import Blueprint, LayerPlan, Outline, Rotary

ORIGINAL_WINDOW = 512
"""Of the model whose frequencies are scaled as Llama 3's."""


def _layers(outline: Outline, **changes: Callable[[Any], Any]) -> Outline:
    changed = [structs.replace(each, **{k: f(each) for k, f in changes.items()}) for each in outline.layers]
    return structs.replace(outline, layers=tuple(changed))


def _rotaries(outline: Outline, change: Callable[[Rotary], Rotary]) -> Outline:
    return structs.replace(outline, rotaries=tuple(map(change, outline.rotaries)))


def _frequencies(outline: Outline, change: Callable[[float, float], float]) -> Outline:
    """`change` gets a frequency and its place among all, from 0 to 1."""

    def changed(rotary: Rotary) -> Rotary:
        count = len(rotary.frequencies)
        return structs.replace(
            rotary, frequencies=tuple(change(each, at / count) for at, each in enumerate(rotary.frequencies))
        )

    return _rotaries(outline, changed)


def wrong_outlines(outline: Outline) -> Mapping[str, Outline]:
    """What can be mistaken in any model, by name."""
    other = "gelu_pytorch_tanh" if outline.activation == "silu" else "silu"
    found = {
        "rope theta ten times larger": _frequencies(outline, lambda each, at: each * 10**-at),
        "rope theta ten times smaller": _frequencies(outline, lambda each, at: each * 10**at),
        "attention scale 10 % off": _layers(outline, scale=lambda layer: layer.scale * 1.1),
        "frequencies of llama3": _frequencies(
            outline, lambda each, _at: each / 4 if each < 2 * math.pi / ORIGINAL_WINDOW else each
        ),
        "linear rope scaling": _frequencies(outline, lambda each, _at: each / 4),
        "attention scaling of rope": _rotaries(outline, lambda each: structs.replace(each, scale=each.scale * 1.1)),
        "half of the rotary dimensions": _rotaries(
            outline, lambda each: structs.replace(each, frequencies=each.frequencies[: len(each.frequencies) // 2])
        ),
        "eps 100 times larger": structs.replace(outline, eps=outline.eps * 100),
        "norm's offset": structs.replace(outline, norm_offset=1 - outline.norm_offset),
        "embedding's scale": structs.replace(outline, embedding_scale=1.0 if outline.embedding_scale != 1 else 8.0),
        "residual": structs.replace(outline, parallel_residual=not outline.parallel_residual),
        "window": _layers(outline, window=lambda layer: None if layer.window else 12),
    }
    if outline.activation != "clamped_silu":
        found["activation"] = structs.replace(outline, activation=other)
    if any(layer.query_norm for layer in outline.layers):
        nothing = _layers(outline, query_norm=lambda _layer: None, key_norm=lambda _layer: None)
        found["norms of queries and keys"] = nothing
    if any(layer.attention_norm for layer in outline.layers):
        found["norm behind the MLP"] = _layers(outline, mlp_norm=lambda _layer: None)
    if len(outline.layers[0].qkv) == 3:
        found["keys for values"] = _layers(outline, qkv=lambda layer: (layer.qkv[0], layer.qkv[2], layer.qkv[1]))
    if len(outline.layers[0].gate_up) == 2:
        found["gates for ups"] = _layers(outline, gate_up=lambda layer: layer.gate_up[::-1])
    if outline.logit_softcap:
        found["logits' softcap"] = structs.replace(outline, logit_softcap=None)
    if any(layer.sinks for layer in outline.layers):
        found["sinks"] = _layers(outline, sinks=lambda _layer: None)
    if any(layer.experts for layer in outline.layers):
        found["experts' weights"] = _layers(
            outline,
            experts=lambda layer: (
                layer.experts and structs.replace(layer.experts, renormalized=not layer.experts.renormalized)
            ),
        )
    if len(outline.rotaries) > 1:
        found["rotary of the other layers"] = _layers(outline, rotary=lambda layer: 1 - layer.rotary)
    return found


def wrong_blueprints(whole: Blueprint) -> Mapping[str, Blueprint]:
    """What can be mistaken of a model's weights, by name."""
    ones = torch.ones_like(whole.norm.weight)
    found = {
        "final norm": replace(whole, norm=replace(whole.norm, weight=ones)),
        "layers in another order": replace(whole, layers=whole.layers[::-1]),
    }
    weight = whole.head.weight
    if isinstance(weight, Tensor) and weight.is_floating_point():
        found["head"] = replace(whole, head=_part(whole.head, torch.arange(len(weight)).roll(1)))
    parts = whole.layers[0].qkv
    if any(getattr(part, "bias", None) is not None for part in parts):
        found["biases of queries, keys and values"] = _qkv(whole, lambda qkv: tuple(map(_without_bias, qkv)))
    if len(parts) == 3 and all(isinstance(part.weight, Tensor) for part in parts):
        dim, rotary = whole.outline.head_dim, 2 * len(whole.outline.rotaries[0].frequencies)
        halves = torch.cat((torch.arange(0, rotary, 2), torch.arange(1, rotary, 2), torch.arange(rotary, dim)))

        def in_pairs(part: Any) -> Any:
            return _part(part, (torch.arange(len(part.weight) // dim)[:, None] * dim + halves).reshape(-1))

        def rolled(part: Any) -> Any:
            return _part(part, torch.arange(len(part.weight)).roll(dim))

        found["rotary in pairs"] = _qkv(whole, lambda qkv: (in_pairs(qkv[0]), in_pairs(qkv[1]), qkv[2]))
        if whole.outline.kv_heads > 1:
            found["heads of keys and values"] = _qkv(whole, lambda qkv: (qkv[0], rolled(qkv[1]), rolled(qkv[2])))
    return found


def _qkv(whole: Blueprint, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Blueprint:
    def changed(layer: LayerPlan) -> LayerPlan:
        return replace(layer, qkv=change(layer.qkv))

    return replace(whole, layers=tuple(map(changed, whole.layers)))


def _part(part: Any, order: Tensor) -> Any:
    """The part with its outputs in another order."""
    plain = _without_bias(part)
    scale, bias = getattr(part, "scale", None), getattr(part, "bias", None)
    plain.weight = part.weight[order]
    plain.scale = None if scale is None else scale[order]
    plain.bias = None if bias is None else bias[order]
    return plain


def _without_bias(part: Any) -> Any:
    names = [name for name in ("weight", "scale", "outliers", "weight_only", "hadamard") if hasattr(part, name)]
    return SimpleNamespace(bias=None, **{name: getattr(part, name) for name in names})
