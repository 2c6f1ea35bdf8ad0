"""The forecast says how many seconds parts of a report will take, from the first steps of each version.

A few short steps fit the cost line of each version. One scored chunk says by how much scoring, which needs the logits
of every position, takes longer than the line says. Nothing here decides how much is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.scheduling.cost import CostLine, StepWork, chunk_attention
from service.evaluation.offline import Loaded, run_all
from service.evaluation.predictions import predict
from service.evaluation.texts import Text

CHUNK_TOKENS: Final = 256
"""Positions of one scored step (`engine.runner.scoring`)."""
_PROMPTS: Final = ((4,) * 8, (4,), (64,))
"""Lengths of the prompts that are answered side by side: a small batch, one alone, and a chunk of a prefill. They are
short, because a large model takes a second for a hundred tokens."""
_NEW_TOKENS: Final = 3
_SCORED_TOKENS: Final = 32
SEATS: Final = 32
"""Sequences that decode side by side in a report."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost line of one version, and the multiple of it that scoring takes."""

    line: CostLine
    scoring_ratio: float

    @classmethod
    def measured(cls, loaded: Loaded, text: Text, vocabulary: int) -> Forecast:
        """Runs a version's first steps, which also warm it up. `text` is any text to score."""
        core, draw = loaded.core(speculation=False), Random(0)
        longest = loaded.config.max_model_len // 2
        for number, lengths in enumerate(_PROMPTS):
            requests = [
                Request(
                    f"{number}-{at}",
                    tuple(draw.randrange(vocabulary) for _ in range(min(tokens, longest))),
                    SamplingParams(max_tokens=_NEW_TOKENS, min_tokens=_NEW_TOKENS),
                    arrival=time.monotonic(),
                )
                for at, tokens in enumerate(lengths)
            ]
            run_all(core, requests)
        line = core.scheduler.policy.cost
        return cls(line, _scoring_ratio(loaded, text, line))

    def scoring(self, texts: Sequence[Text]) -> float:
        """Returns the seconds to score these texts."""
        return self.scoring_ratio * sum(_prefill(self.line, len(text.token_ids)) for text in texts)

    def answering(self, prompts: Sequence[int], new_tokens: int) -> float:
        """Returns the seconds to answer prompts of these lengths with so many tokens each."""
        seated = [prompts[at : at + SEATS] for at in range(0, len(prompts), SEATS)]
        prefill = sum(_prefill(self.line, tokens) for tokens in prompts)
        return prefill + new_tokens * sum(self.step(len(each), sum(each)) for each in seated)

    def prefill(self, tokens: int) -> float:
        return _prefill(self.line, tokens)

    def step(self, sequences: int, kv_tokens: int = 0) -> float:
        """Returns the seconds of a step in which so many sequences decode."""
        return self.line.predict(StepWork(sequences, kv_tokens))


def _prefill(line: CostLine, tokens: int) -> float:
    """Returns the seconds of a prefill in chunks."""
    whole = range(0, tokens, CHUNK_TOKENS)
    chunks = [(at, min(CHUNK_TOKENS, tokens - at)) for at in whole]
    return sum(line.predict(StepWork(size, 0, chunk_attention(at, size))) for at, size in chunks)


def _scoring_ratio(loaded: Loaded, text: Text, line: CostLine) -> float:
    """Scores a short text twice, because the first time is the slower one."""
    short = text.cut(_SCORED_TOKENS)
    seconds = math.inf
    for _ in range(2):
        started = time.perf_counter()
        predict([loaded], [short])
        seconds = min(seconds, time.perf_counter() - started)
    return seconds / _prefill(line, len(short.token_ids))
