"""Random weights in the blocks of a GGUF file."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from models.weights.blocks import BlockWeight
from tests.gguf_files import Stored

_SCALES: Final = {
    "Q4_0": (0.011, 0.0, 0),
    "Q4_1": (0.011, -0.082, 0),
    "Q5_0": (0.0055, 0.0, 0),
    "Q5_1": (0.0055, -0.085, 0),
    "Q8_0": (0.0007, 0.0, 0),
    "Q4_K": (0.00035, 0.0026, 0),
    "Q5_K": (0.00018, 0.0027, 0),
    "Q6_K": (0.00004, 0.0, 208),
}
"""Of each type a usual scale, minimum (0: it has none), and the place of the scale in a block."""


def random_blocks(out: int, depth: int, kind: str, seed: int = 0) -> BlockWeight:
    """Any codes and whole scales, also those that no quantizer makes, for weights of about 0.05. Scales in fp16 are of
    usual size; some are far smaller."""
    inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng((out, depth, seed))
    data = rng.integers(0, 256, (out, depth // inputs, size), dtype=np.uint8)
    usual, minimum, place = _SCALES[kind]
    for value, at in ((usual, place), (minimum, place + 2))[: 2 if minimum else 1]:
        scale = value * rng.uniform(0.5, 1.5, size=data.shape[:2])
        scale[rng.random(scale.shape) < 0.05] *= 0.01
        data[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return BlockWeight(torch.from_numpy(data.reshape(out, -1)), kind)


def stored(tensor: Tensor, kind: str, seed: int = 0) -> Stored:
    """Random blocks for a GGUF file in the place of a tensor [.., out, in]."""
    *outer, depth = tensor.shape
    blocks = random_blocks(tensor[..., 0].numel(), depth, kind, seed)
    return blocks.number, (*outer, depth), blocks.data.numpy().tobytes()
