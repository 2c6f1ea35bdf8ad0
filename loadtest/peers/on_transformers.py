"""transformers: `on_transformers MODEL_DIR DTYPE static|continuous [SIZE WAIT]`.

static: `generate`, one batch after another; SIZE and WAIT hold batches back (see `StaticBatches`).
continuous: its continuous batching manager, every token streamed.
The model lies where ours does: on the device that DOSIRAK_DEVICE names, or on the CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import transformers

from loadtest.peers.driver import Emit, Engine, StaticBatches, serve


class EveryStep(transformers.StoppingCriteria):
    """Called by `generate` after each token; never stops."""

    def __init__(self, on_step: Callable[[Sequence[int]], None]) -> None:
        self._on_step = on_step

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self._on_step(input_ids[:, -1].tolist())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def generate(model: Any, prompts: list[list[int]], new_tokens: int, on_step: Callable[[Sequence[int]], None]) -> None:
    """One static batch, padded on the left."""
    width, device = max(map(len, prompts)), model.device
    input_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    criteria = transformers.StoppingCriteriaList([EveryStep(on_step)])
    with torch.inference_mode():
        model.generate(
            input_ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            stopping_criteria=criteria,
        )


class Batches(StaticBatches):
    """Static batches, and the logits of the same model."""

    def __init__(self, model: Any, size: int, wait: float) -> None:
        super().__init__(partial(generate, model), size, wait)
        self._model = model

    def predict(self, token_ids: list[int]) -> bytes:
        with torch.inference_mode():
            logits = self._model(torch.tensor([token_ids], device=self._model.device)).logits[0, :-1]
        rows: bytes = logits.float().cpu().numpy().tobytes()
        return rows


class Continuous:
    def __init__(self, model: Any) -> None:
        config: Any = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, eos_token_id=-1, max_new_tokens=64
        )
        self._manager = model.init_continuous_batching(generation_config=config)
        self._manager.start()
        self._seen: dict[str, int] = {}
        self._waves = 0

    def add(self, number: int, token_ids: list[int], new_tokens: int, sampled: bool) -> None:
        self._waves += 1
        key = f"{self._waves}-{number}"
        self._seen[key] = 0
        self._manager.add_request(token_ids, request_id=key, max_new_tokens=new_tokens, streaming=True)

    def step(self, emit: Emit) -> None:
        result = self._manager.get_result(timeout=1.0)
        if result is None:
            if not self._manager.is_running():
                raise SystemExit("the continuous batching thread has ended")
            return
        if result.error:
            raise SystemExit(result.error)
        new = result.generated_tokens[self._seen[result.request_id] :]
        self._seen[result.request_id] += len(new)
        emit(int(result.request_id.split("-")[1]), new)


def build(directory: str, dtype: str, batching: str, *held: str) -> Engine:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    model.to(os.environ.get("DOSIRAK_DEVICE", "cpu"))
    model.generation_config.eos_token_id = (
        None  # as many tokens as are asked for, and an end token where it is likeliest
    )
    if batching == "continuous":
        return Continuous(model)
    size, wait = (int(held[0]), float(held[1])) if held else (64, 0.0)
    return Batches(model, size, wait)


if __name__ == "__main__":
    serve(partial(build, *sys.argv[1:]))
    os._exit(0)  # its threads are not daemons
