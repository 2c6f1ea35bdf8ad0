"""Muon is an optimizer for weight matrices. It makes the update of the momentum orthogonal.

Source: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest semi-orthogonal matrix, by five Newton-Schulz steps."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, b * gram + c * gram @ gram, x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Updates two-dimensional parameters by lr * 0.2 * sqrt(longer side) times the orthogonal Nesterov momentum."""

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        lr: float,
        threads: ThreadPoolExecutor,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.threads = threads

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            update = partial(self._update, lr=group["lr"], momentum=group["momentum"], decay=group["weight_decay"])
            list(self.threads.map(update, [weight for weight in group["params"] if weight.grad is not None]))

    @torch.no_grad()
    def _update(self, weight: Tensor, lr: float, momentum: float, decay: float) -> None:
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - momentum)
        update = orthogonal(weight.grad.lerp(state["momentum"], momentum))
        weight.mul_(1 - lr * decay)
        weight.add_(update, alpha=-lr * 0.2 * max(weight.shape) ** 0.5)
