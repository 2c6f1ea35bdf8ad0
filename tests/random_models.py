"""Random decoders of any outline that the native decoder computes, as blueprints. Knows shapes; no blocks, no steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from models.manifest import HADAMARD
from models.weights.int4 import encode, fits
from models.weights.loading import DTYPES, LowRankWeights, Outliers
from service.engine.runner.forwards.attention import AttentionSpec
from service.engine.runner.forwards.blueprint import (
    ACTIVATIONS,
    HEAD,
    PRODUCTS,
    Blueprint,
    ExpertsOutline,
    LayerOutline,
    LayerPlan,
    Norm,
    Outline,
)

ROTARIES = 2
"""Kinds of rotary positions among the layers."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of one model."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    max_model_len: int
    kv_heads: int
    heads: int
    head_dim: int
    rotary: int
    block_size: int
    blocks: int
    experts: int = 0  # of a mixture, whose layers are whole panels

    @classmethod
    def random(cls, rng: random.Random) -> Sizes:
        experts = rng.choice((0, 0, 1, 3, 8))
        kv_heads, head_dim = rng.randint(1, 3), rng.choice((2, 7, 8, 16, 24, 40, 80))
        max_model_len, block_size = rng.choice((1, 40, 200, 600)), rng.choice((1, 5, 8, 16))
        return cls(
            layers=rng.randint(1, 2),
            hidden=rng.choice((32, 96)) if experts else rng.choice((1, 16, 33, 64, rng.randint(1, 150))),
            intermediate=rng.choice((16, 48, 96)) if experts else rng.choice((1, 48, 96, rng.randint(1, 200))),
            vocabulary=rng.choice((1, 64, rng.randint(1, 300))),
            max_model_len=max_model_len,
            kv_heads=kv_heads,
            heads=kv_heads * rng.choice((1, 1, 2, 3, 5, 8)),
            head_dim=head_dim,
            rotary=rng.randrange(2, head_dim + 1, 2),
            block_size=block_size,
            blocks=rng.randint(1, 8) + 2 * -(-max_model_len // block_size),
            experts=experts,
        )


def noise(rng: random.Random, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rng.getrandbits(60)))


class _Linears:
    """Linear modules of one precision, as a blueprint holds them."""

    def __init__(self, rng: random.Random, precision: str) -> None:
        self.rng, self.precision = rng, precision

    def __call__(self, depth: int, *outputs: int, outliers: int = 5) -> tuple[Any, ...]:
        """Modules that read the same rows, hence with the same outliers, at most so many, and the same transform."""
        columns = sorted(self.rng.sample(range(depth), self.rng.randint(0, min(depth, outliers))))
        block = 2 ** self.rng.randrange(9) if self.precision in HADAMARD else 1
        return tuple(random_linear(self.rng, self.precision, depth, out, columns, block) for out in outputs)


def random_linear(
    rng: random.Random, precision: str, depth: int, out: int, columns: Sequence[int] = (), block: int = 1
) -> Any:
    """A linear module of a precision, whose outliers are these columns, with a Hadamard transform of this block."""
    weight: Any = noise(rng, out, depth) * depth**-0.5
    scale, outliers = None, None
    if precision in DTYPES:
        weight = weight.to(DTYPES[precision])
    else:
        scale = weight.abs().amax(1).clamp(min=1e-9) / 127
        weight = (weight / scale[:, None]).round().to(torch.int8)
    if precision == "int4" and fits(depth, 32):
        weight = encode(weight.float(), torch.ones(out), 32)
    if precision == "llm-int8":
        weight[:, list(columns)] = 0
        kept = noise(rng, out, len(columns)).to(torch.bfloat16)
        outliers = Outliers(torch.tensor(columns, dtype=torch.int32), kept)
    bias = noise(rng, out) if rng.random() < 0.5 else None
    weight_only = precision == "int8-weight"
    return SimpleNamespace(
        weight=weight, scale=scale, bias=bias, outliers=outliers, weight_only=weight_only, hadamard=block
    )


def _norm(rng: random.Random, size: int, outline: Outline) -> Norm:
    return Norm(noise(rng, size), noise(rng, size) if outline.layer_norm else None)


def _layer(
    rng: random.Random, sizes: Sizes, linears: _Linears, has_norms: tuple[bool, bool], whole: Outline, index: int
) -> LayerPlan:
    names = whole.layers[index]
    count = names.experts.count if names.experts else 0
    s, (after, of_heads), ups = sizes, has_norms, 2 if whole.gated else 1
    spec = AttentionSpec(
        s.head_dim**-0.5,
        names.window,
        rng.choice((None, None, 20.0)) if after else None,
        sinks=rng.choice((None, noise(rng, s.heads))),
    )
    return LayerPlan(
        qkv=linears(s.hidden, *(heads * s.head_dim for heads in (s.heads, s.kv_heads, s.kv_heads))),
        output=linears(s.heads * s.head_dim, s.hidden),
        gate_up=linears(s.hidden, *[s.intermediate] * ups * (count or 1), outliers=0 if count else 5),
        down=linears(s.intermediate, *[s.hidden] * (count or 1), outliers=0 if count else 5),
        input_norm=_norm(rng, s.hidden, whole),
        attention_norm=_norm(rng, s.hidden, whole) if names.attention_norm else None,
        middle_norm=_norm(rng, s.hidden, whole),
        mlp_norm=_norm(rng, s.hidden, whole) if after else None,
        query_norm=_norm(rng, s.head_dim, whole) if of_heads else None,
        key_norm=_norm(rng, s.head_dim, whole) if of_heads else None,
        spec=spec,
        router=random_linear(rng, rng.choice(("fp32", "bf16")), s.hidden, count) if count else None,
    )


def _outline(rng: random.Random, sizes: Sizes, after: bool) -> Outline:
    """What of an outline a decoder over plain modules reads: names are places. A model without experts may have a
    parallel residual, which excludes a norm `after` attention, and MLPs without gates."""
    parallel = not sizes.experts and rng.random() < 0.4
    gated = bool(sizes.experts) or rng.random() < 0.6

    def layer(index: int) -> LayerOutline:
        def named(*names: str) -> tuple[str, ...]:
            return tuple(f"{index}.{name}" for name in names)

        names = (named("q", "k", "v"), named("o"), named("gate", "up") if gated else named("up"), named("down"))
        count, experts = sizes.experts, None
        if count and rng.random() < 0.8:
            experts = ExpertsOutline("router", count, rng.randint(1, count), rng.random() < 0.5)
        rotary, window = rng.randrange(ROTARIES), rng.choice((None, None, 1, 7, 130))
        attention_norm = "after" if after and not parallel else None
        return LayerOutline(
            *names, "", attention_norm, "", None, None, None, 1.0, window, None, rotary=rotary, experts=experts
        )

    return Outline(
        embedding="",
        embedding_scale=rng.choice((1.0, 3.5)),
        rotaries=(),
        layers=tuple(map(layer, range(sizes.layers))),
        norm="",
        norm_offset=0.0,
        head=HEAD,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        eps=1e-5,
        activation=rng.choice([each for each in ACTIVATIONS if gated or each != "clamped_silu"]),
        logit_softcap=rng.choice((None, 30.0)),
        alpha=1.7,
        limit=rng.choice((0.5, 7.0)),
        layer_norm=rng.random() < 0.5,
        parallel_residual=parallel,
        gated=gated,
    )


def random_blueprint(rng: random.Random, sizes: Sizes, precision: str) -> Blueprint:
    linears = _Linears(rng, precision)
    has_norms = (rng.random() < 0.5, rng.random() < 0.5)
    outline = _outline(rng, sizes, has_norms[0])
    angles = [noise(rng, sizes.max_model_len, sizes.rotary) for _ in range(ROTARIES)]
    dtype = rng.choice((torch.float32, torch.bfloat16))
    is_shared = precision in HADAMARD and rng.random() < 0.5
    head = _Linears(rng, "int8") if is_shared and precision == "int4" else linears  # no version has a head in 4 bits
    return Blueprint(
        outline=outline,
        dtype=dtype,
        embedding=None if is_shared else noise(rng, sizes.vocabulary, sizes.hidden).to(dtype),
        tables=tuple((each.cos(), each.sin()) for each in angles),
        layers=tuple(_layer(rng, sizes, linears, has_norms, outline, index) for index in range(sizes.layers)),
        norm=_norm(rng, sizes.hidden, outline),
        head=head(sizes.hidden, sizes.vocabulary)[0],
    )


def random_adapter(rng: random.Random, whole: Blueprint) -> dict[str, LowRankWeights]:
    """For some of the blueprint's linear modules."""
    modules = {HEAD: whole.head}
    for names, plan in zip(whole.outline.layers, whole.layers, strict=True):
        for product in PRODUCTS[:2] if names.experts else PRODUCTS:
            modules |= dict(zip(getattr(names, product), getattr(plan, product), strict=True))
    chosen = rng.sample(sorted(modules), rng.randint(1, len(modules)))
    return {name: _low_rank(rng, *modules[name].weight.shape) for name in chosen}


def _low_rank(rng: random.Random, outputs: int, depth: int) -> LowRankWeights:
    rank, dtype = rng.choice((1, 3, 4, 8, 9)), rng.choice((torch.float32, torch.bfloat16))
    return LowRankWeights(noise(rng, rank, depth).to(dtype), noise(rng, rank, outputs).to(dtype), rng.random())
