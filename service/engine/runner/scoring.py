"""Scoring says what versions predict of a given text: each position from the true tokens before it (teacher forcing).
If an encoder reads the prompt, the encoder gets the first half of the text and the decoder predicts the second half.

logprob    ln p(token)
likeliest  argmax p
margin     ln p(likeliest) - ln p(second likeliest) of the first version
kl         Σ p·ln(p/q) in nats, p the first version's distribution and q this one's (Kullback and Leibler 1951);
           a token with p = 0 adds 0, and a NaN makes the sum NaN

Versions walk through a text side by side, so that no more than a step's logits of each are in memory, and none on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.model_runner import ModelRunner
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence

CHUNK = 256
"""Positions in one step: what logits take is this times the vocabulary."""
PIECE = 32
"""Rows whose log-probabilities, of every version, are held at once."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """A version that predicts. `decoder_start` is as EngineConfig's, `adapter` the runner's adapter of that name.
    Scoring writes KV blocks from the first on: nothing else may run."""

    runner: ModelRunner
    decoder_start: tuple[int, ...] = ()
    adapter: str = ""


@dataclass(slots=True)
class Scores:
    """Of a text's counted positions, in order. The first version has `margins` and no `kl`, the others `kl` alone."""

    logprobs: list[float] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)


@torch.inference_mode()
def score(versions: Row[Scorer], token_ids: tuple[int, ...], positions: Collection[int]) -> list[Scores]:
    """Returns the scores of each version on one text; `positions`, from 1 on and ascending, are those whose prediction
    counts."""
    scores = [Scores() for _ in versions]
    walks = (_pieces(each, token_ids, positions) for each in versions)
    for pieces in zip(*walks, strict=True):
        targets, reference = pieces[0]
        first, second = reference.topk(2, dim=-1).values.unbind(-1)
        scores[0].margins += (first - second).tolist()
        for at, (taken, (_, found)) in enumerate(zip(scores, pieces, strict=True)):
            taken.logprobs += found.gather(1, targets)[:, 0].tolist()
            taken.likeliest += found.argmax(dim=-1).tolist()
            if at:
                taken.kl += _kl(reference, found).tolist()
    return scores


def _kl(reference: Tensor, found: Tensor) -> Tensor:
    """Returns the divergence of each row of log-probabilities [rows, vocabulary]."""
    terms = reference.exp() * (reference - found)
    return torch.where(reference == -torch.inf, 0.0, terms).sum(dim=-1)


def _pieces(version: Scorer, token_ids: tuple[int, ...], positions: Collection[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (true tokens [rows, 1], log-probabilities [rows, vocabulary]) of the positions that count."""
    for first, logits in _chunks(version, token_ids):
        rows = [at - first for at in positions if first <= at < first + len(logits)]
        for start in range(0, len(rows), PIECE):
            piece = rows[start : start + PIECE]
            targets = torch.tensor([token_ids[first + row] for row in piece])[:, None]
            yield targets, torch.log_softmax(logits[piece].float(), dim=-1).cpu()


def _chunks(version: Scorer, token_ids: tuple[int, ...]) -> Iterator[tuple[int, Tensor]]:
    """Yields (first, logits): row i predicts the token at first + i."""
    runner, decoder_start = version.runner, version.decoder_start
    half = len(token_ids) // 2 if decoder_start else len(token_ids)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    request = Request("text", token_ids[:half], params, adapter=version.adapter)
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
