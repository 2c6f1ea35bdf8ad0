"""8-bit weights: one scale for each output, codes of -127 to 127."""

import torch


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] floating → (int8 [out, in], float32 scale [out]), per row; |weight - int8 * scale| <= scale / 2."""
    scale = row_scale(weight)
    return torch.round(weight.float() / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


def row_scale(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] floating → float32 [out]: a 127th of each row's largest magnitude; 1 for a row of zeros."""
    scale = weight.abs().amax(dim=1).float() / 127
    return torch.where(scale < torch.finfo(torch.float32).tiny, torch.ones_like(scale), scale)
