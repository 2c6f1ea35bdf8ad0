"""Scoring says what a version predicts of a given text: each position from the true tokens before it (teacher forcing).
If an encoder reads the prompt, the encoder gets the first half of the text and the decoder predicts the second half.

logprob    ln p(token)
likeliest  argmax p
kl         Σ p·ln(p/q) in nats, p the first version's distribution and q this one's (Kullback and Leibler 1951)
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from service.engine.batch import Batch, Scheduled
from service.engine.messages import Request, SamplingParams
from service.engine.sequence import Sequence
from service.runner.model_runner import ModelRunner

CHUNK = 256
"""Positions in one step: what logits take is this times the vocabulary."""
PIECE = 32
"""Rows whose log-probabilities, and those of the first version, are held at once."""


@dataclass(slots=True)
class Scores:
    """Of a text's counted positions, in order; `kl` is empty for the first version."""

    logprobs: list[float] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)


class Distributions:
    """The first version's log-probabilities, fp32 [position, vocabulary], in a file that nobody else sees."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def rewind(self) -> None:
        self._file.seek(0)

    def keep(self, rows: Tensor) -> None:
        self._file.write(rows.numpy().data)

    def next(self, like: Tensor) -> Tensor:
        """As many rows as `like` has, from where the last call ended."""
        return torch.frombuffer(bytearray(self._file.read(like.nbytes)), dtype=like.dtype).view(like.shape)


@torch.inference_mode()
def score(
    runner: ModelRunner,
    token_ids: tuple[int, ...],
    positions: Collection[int],
    kept: Distributions,
    is_first: bool,
    decoder_start: tuple[int, ...] = (),
    adapter: str = "",
) -> Scores:
    """Of one text, by the runner's adapter of that name; `positions`, from 1 on and ascending, are those whose
    prediction counts. The first version's distributions go to `kept`, those of others are compared with what is there:
    the same texts in the same order. `decoder_start` is as EngineConfig's.

    Writes KV blocks from the first on: nothing else may run.
    """
    scores = Scores()
    for first, logits in _chunks(runner, token_ids, decoder_start, adapter):
        rows = [at - first for at in positions if first <= at < first + len(logits)]
        for start in range(0, len(rows), PIECE):
            piece = rows[start : start + PIECE]
            found = torch.log_softmax(logits[piece].float(), dim=-1).cpu()
            _take_in(scores, found, [token_ids[first + row] for row in piece], kept, is_first)
    return scores


def _take_in(scores: Scores, found: Tensor, targets: list[int], kept: Distributions, is_first: bool) -> None:
    """The log-probabilities `found` [rows, vocabulary], of which `targets` are the true tokens."""
    scores.logprobs += found.gather(1, torch.tensor(targets)[:, None])[:, 0].tolist()
    scores.likeliest += found.argmax(dim=-1).tolist()
    if is_first:
        kept.keep(found)
        return
    theirs = kept.next(found)
    scores.kl += (theirs.exp() * (theirs - found)).nansum(dim=-1).tolist()


def _chunks(
    runner: ModelRunner, token_ids: tuple[int, ...], decoder_start: tuple[int, ...], adapter: str
) -> Iterator[tuple[int, Tensor]]:
    """(first, logits): row i predicts the token at first + i."""
    half = len(token_ids) // 2 if decoder_start else len(token_ids)
    request = Request("text", token_ids[:half], SamplingParams(max_tokens=1, prompt_logprobs=0), adapter=adapter)
    known = (*decoder_start, *token_ids[half:])
    sequence = Sequence.of(request, known, runner.cache.block_size)
    slots, last = sequence.num_encoder_slots, sequence.num_tokens - 1
    runner.cache.lend(sequence, sequence.num_tokens)
    while sequence.num_computed_tokens < last:
        start = max(sequence.num_computed_tokens, slots)
        end = min(start + CHUNK, last)
        logits = runner.prompt_logits(Batch((Scheduled(sequence, end - sequence.num_computed_tokens),)))
        first = start + 1 - slots + half - len(decoder_start) if slots else start + 1
        forced = max(0, half - first) if slots else 0  # rows that predict the rest of the decoder's start
        yield first + forced, logits[forced:]
        sequence.num_computed_tokens = end
