"""Replicas compute one gradient from several batches at once: copies of the model share its parameters, a thread each.

They know no schedule and no optimizer.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from recipe.encoding import Row
from recipe.network import Llama

PADDING = 32


class Replicas:
    """Computes one gradient from several batches at once, a thread each.

    On few cores this is faster than threads inside the matrix products; more replicas than threads keep every thread
    busy when batches differ in cost. The replicas share the parameters of `model` and have gradients of their own,
    which are added in order: the sum is reproducible.
    """

    def __init__(
        self, model: Llama, count: int, threads: ThreadPoolExecutor, device: str, compiled: bool = False
    ) -> None:
        self.model, self.device, self.mixed = model, device, bf16_is_fast(device)
        self.copies = [Llama(model.shape).to(device) for _ in range(count)]
        for copy in self.copies:
            for mine, shared in zip(copy.parameters(), model.parameters(), strict=True):
                mine.data = shared.data
        self.threads = threads
        if compiled:
            for copy in self.copies:
                compile_layers(copy)

    def gradient(self, work: list[list[Row]]) -> tuple[float, int]:
        """Set the gradients of the model to that of the weighted mean loss over `work`.

        Returns that loss and the number of positions, padding included.
        """
        total = sum(sum(row.weights[1:]) for rows in work for row in rows)
        losses = list(self.threads.map(self._one, self.copies, work, [total] * len(work)))
        for shared, *parts in zip(self.model.parameters(), *(copy.parameters() for copy in self.copies), strict=True):
            grads = [part.grad for part in parts if part.grad is not None]
            shared.grad = torch.stack(grads).sum(0) if grads else None
            for part in parts:
                part.grad = None
        return sum(losses), sum(len(rows) * max(len(row.token_ids) for row in rows) for rows in work)

    def _one(self, copy: Llama, rows: list[Row], total: float) -> float:
        token_ids, targets, weights = tensors(rows, self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.mixed):
            loss: Tensor = copy(token_ids, targets, weights) / total
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


def compile_layers(model: Llama) -> None:
    """Compile each layer, which takes a minute, for one thread on a CPU.

    A C++ wrapper frees the interpreter's lock; Python's would let one replica work at a time.
    """
    for layer in model.model.layers:
        layer.compile(dynamic=True, options={"cpp.threads": 1, "cpp_wrapper": True})


def bf16_is_fast(device: str) -> bool:
    """Whether products of bf16 are faster than fp32 on `device`: on a GPU, and on a CPU with AMX."""
    return device == "cuda" or bool(torch.cpu.get_capabilities().get("amx_bf16"))


def tensors(rows: list[Row], device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, targets and weights [rows, length], padded with weight 0; `length` is a multiple of PADDING.

    Few different lengths are few different products, each of which oneDNN prepares once.
    """
    longest = max(len(row.token_ids) for row in rows) - 1
    length = -(-longest // PADDING) * PADDING + 1
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for at, row in enumerate(rows):
        ids[at, : len(row.token_ids)] = torch.tensor(row.token_ids)
        weights[at, : len(row.weights)] = torch.tensor(row.weights)
    return ids[:, :-1].to(device), ids[:, 1:].to(device), weights[:, 1:].to(device)
