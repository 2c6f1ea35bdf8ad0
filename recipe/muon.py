"""Muon is an optimizer for weight matrices. It makes the update of the momentum orthogonal.

Source: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """About the nearest semi-orthogonal matrix, by five Newton-Schulz steps; also for a stack [n, rows, columns]. The
    steps are in `dtype`: bf16 is enough for an update, as the source says."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)).to(dtype)
    multiply_add = torch.addmm if x.ndim == 2 else torch.baddbmm
    for _ in range(5):
        gram = x @ x.mT
        x = multiply_add(x, b * gram + c * gram @ gram, x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Updates two-dimensional parameters by lr * 0.2 * sqrt(longer side) times the orthogonal Nesterov momentum."""

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        lr: float,
        threads: ThreadPoolExecutor,
        dtype: torch.dtype = torch.float32,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.threads, self.dtype = threads, dtype

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            update = partial(self._update, lr=group["lr"], momentum=group["momentum"], decay=group["weight_decay"])
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights and weights[0].is_cuda:  # one product for all matrices of a shape: a device likes few and large
                shapes = {weight.shape: [each for each in weights if each.shape == weight.shape] for weight in weights}
                list(map(update, shapes.values()))
            else:
                list(self.threads.map(update, [[weight] for weight in weights]))

    @torch.no_grad()
    def _update(self, weights: list[torch.nn.Parameter], lr: float, momentum: float, decay: float) -> None:
        """Update `weights`, which have one shape."""
        leads = [self._lead(weight, momentum) for weight in weights]
        updates = orthogonal(leads[0] if len(leads) == 1 else torch.stack(leads), self.dtype).reshape(
            len(leads), *leads[0].shape
        )
        for weight, update in zip(weights, updates, strict=True):
            weight.mul_(1 - lr * decay)
            weight.add_(update.to(weight.dtype), alpha=-lr * 0.2 * max(weight.shape) ** 0.5)

    def _lead(self, weight: torch.nn.Parameter, momentum: float) -> Tensor:
        """The gradient with Nesterov momentum, which is updated."""
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(state["momentum"], momentum)
