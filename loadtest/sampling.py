"""`python -m loadtest.sampling`: what sampling costs a step, by rows, vocabulary and parameters.

A step here is all that a step does between logits and tokens: it takes in each sequence's last token, makes the
sampler's rows, changes logits, filters, draws and tells logprobs. Three systems take turns on the same logits:

native  the kernels            torch  the torch operations that serve without them
sort    what transformers does: for top-p, a sort of the vocabulary, softmax, cumulative sum, multinomial
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.sampling.reference import TorchSampling
from service.engine.runner.sampling.row import SamplerRow
from service.engine.runner.sampling.sampler import Backend, Sampler
from service.engine.sequences.batch import Scheduled
from service.engine.sequences.sequence import Sequence

PROMPT = 100
SPREAD = 3.0
"""Standard deviation of the logits: the nucleus of 0.9 then holds some hundred tokens of 128,256."""
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "greedy": (100, {}),
    "temperature 0.7": (100, {"temperature": 0.7}),
    "0.7, top-p 0.9": (100, {"temperature": 0.7, "top_p": 0.9}),
    "0.7, top-k 50": (100, {"temperature": 0.7, "top_k": 50}),
    "0.7, min-p 0.05": (100, {"temperature": 0.7, "min_p": 0.05}),
    "greedy, penalties at 100": (100, {"repetition_penalty": 1.1, "frequency_penalty": 0.2}),
    "greedy, penalties at 1000": (1000, {"repetition_penalty": 1.1, "frequency_penalty": 0.2}),
    "greedy, penalties at 4000": (4000, {"repetition_penalty": 1.1, "frequency_penalty": 0.2}),
    "greedy, 5 logprobs": (100, {"logprobs": 5}),
}
"""(length of the output so far, sampling parameters)."""


class Steps:
    """The sequences of one case, and one step of them after the other."""

    def __init__(self, logits: Tensor, output: int, fields: dict[str, Any], backend: Backend | None) -> None:
        self._logits = logits
        self._sampler = Sampler(backend)
        vocabulary = logits.shape[1]
        generator = torch.Generator().manual_seed(1)
        self._sequences = []
        for seed in range(len(logits)):
            known = torch.randint(vocabulary, (PROMPT + output,), generator=generator).tolist()
            params = SamplingParams(max_tokens=1 << 20, seed=seed, **fields)
            request = Request(str(seed), tuple(known[:PROMPT]), params, emitted=tuple(known[PROMPT:]))
            self._sequences.append(Sequence.of(request))
        self.step()

    def step(self) -> None:
        items = [Scheduled(sequence, sequence.num_tokens) for sequence in self._sequences]
        rows = [row for item in items for row in SamplerRow.of(item)]
        for sequence, sampled in zip(self._sequences, self._sampler.sample(self._logits, rows), strict=True):
            assert sampled.token_id is not None
            sequence.token_ids.append(sampled.token_id)


def sort_top_p(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """As transformers' TopPLogitsWarper and `multinomial` do."""
    scores, order = torch.sort(logits / temperature, descending=False)
    dropped = scores.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    dropped[..., -1:] = False
    scores = logits.masked_fill(dropped.scatter(1, order, dropped), float("-inf")) / temperature
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)


def measure(systems: dict[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Least and median milliseconds of each, in turns; one that takes long gets fewer rounds."""
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            if sum(found[name]) < seconds or not found[name]:
                started = time.perf_counter()
                run()
                found[name].append(time.perf_counter() - started)
    return {name: (1000 * min(times), 1000 * median(times)) for name, times in found.items()}


def table(rows: Iterable[int], vocabularies: Iterable[int], rounds: int, seconds: float) -> Iterable[str]:
    yield "| vocabulary | rows | parameters | native: least / median ms | torch | sort |"
    yield "|---|---|---|---|---|---|"
    for vocabulary in vocabularies:
        for count in rows:
            logits = SPREAD * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(0))
            for name, (output, fields) in CASES.items():
                systems: dict[str, Callable[[], object]] = {
                    "native": Steps(logits, output, fields, None).step,
                    "torch": Steps(logits, output, fields, TorchSampling()).step,
                }
                if "top_p" in fields:
                    systems["sort"] = lambda: sort_top_p(logits, 0.7, 0.9)  # noqa: B023 - called in this turn
                found = measure(systems, rounds, seconds)
                cells = [
                    f"{found[name][0]:.2f} / {found[name][1]:.2f}" if name in found else ""
                    for name in ("native", "torch", "sort")
                ]
                yield f"| {vocabulary:,} | {count} | {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32_000, 128_256, 151_936])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one system in one line of the table")
    options = parser.parse_args()
    for line in table(options.rows, options.vocabulary, options.rounds, options.seconds):
        print(line, flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
