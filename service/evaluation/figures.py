"""The figures of a report, and their intervals, are made here from what was measured. This module measures nothing."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from models.manifest import Manifest
from models.repository import intervals
from models.repository.intervals import Interval, Range
from models.repository.report import Comparison, Recalled, Speed, TextPart, TextSet
from service.engine.protocol.messages import EngineInfo
from service.evaluation.predictions import Predictions
from service.evaluation.speed import Pace
from service.evaluation.texts import Text, described

_PART_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured. Of `predicted` and `pace` the last is the version's and, of two, the first the baseline's.
    `drift` is the agreement of each greedy answer."""

    predicted: Sequence[Predictions]
    pace: Sequence[Pace]
    drift: Sequence[float]
    recall: tuple[Recalled, ...]


def text_set(name: str, texts: Sequence[Text], predicted: Predictions) -> TextSet:
    """Returns the set with what the version lost on each of its texts."""
    parts = (
        TextPart(text.digest()[:_PART_DIGITS], size, loss)
        for text, size, loss in zip(texts, predicted.sizes, predicted.losses(), strict=True)
    )
    whole = described(name, texts)
    return TextSet(whole.name, whole.sha256, whole.tokens, tuple(parts))


def comparison(baseline: Manifest, measured: Measured) -> Comparison:
    theirs, mine = measured.predicted
    ratios = measured.pace[1].decode_ratio(measured.pace[0])
    return Comparison(
        reference=baseline.reference,
        digest=baseline.digest,
        perplexity_change=mine.perplexity / theirs.perplexity - 1,
        kl=mine.mean_kl,
        top1_agreement=mine.agreement(theirs),
        greedy_agreement=mean(measured.drift) if measured.drift else None,
        decode_ratio={str(batch): ratio for batch, ratio in ratios.items()},
        clear_top1_agreement=mine.clear_agreement(theirs),
        clear=sum(theirs.clear()) / len(theirs.margins),
    )


def speed(info: EngineInfo, pace: Pace) -> Speed:
    return Speed(
        host=f"{platform.machine()}, {', '.join(info.kernels)}",
        threads=info.threads,
        memory_bytes=info.memory_bytes,
        load_seconds=round(info.load_seconds, 3),
        prefill_tokens_per_second=round(median(pace.prefill), 2),
        decode_tokens_per_second={str(batch): round(median(rates), 2) for batch, rates in pace.decode_rates().items()},
    )


def all_intervals(measured: Measured) -> dict[str, Interval]:
    """Returns the intervals by the figure's path in the report."""
    found = [*_of_version(measured)]
    if len(measured.predicted) == 2:
        found += [(f"compared.{figure}", interval, items) for figure, interval, items in _of_comparison(measured)]
    return {figure: Interval(*interval, items) for figure, interval, items in found if interval is not None}


def _of_version(measured: Measured) -> Iterator[tuple[str, Range | None, int]]:
    mine, pace = measured.predicted[-1], measured.pace[-1]
    loss = intervals.mean_of_groups(mine.losses(), mine.sizes)
    yield "perplexity", _perplexity(loss), len(mine.logprobs)
    questions = sum(cell.asked for cell in measured.recall)
    if questions:
        yield "recall", intervals.share(sum(cell.good for cell in measured.recall), questions), questions
    yield "speed.prefill_tokens_per_second", intervals.median(pace.prefill), len(pace.prefill)
    for batch, rates in pace.decode_rates().items():
        yield f"speed.decode_tokens_per_second.{batch}", intervals.median(rates), len(rates)


def _of_comparison(measured: Measured) -> Iterator[tuple[str, Range | None, int]]:
    theirs, mine = measured.predicted
    tokens = len(mine.logprobs)
    more_loss = [a - b for a, b in zip(mine.losses(), theirs.losses(), strict=True)]
    change = intervals.mean_of_groups(more_loss, mine.sizes)
    yield "perplexity_change", intervals.of_exponential(change), tokens
    yield "kl", _not_negative(intervals.mean_of_groups(mine.by_text(mine.kl), mine.sizes)), tokens
    same = [round(count) for count in mine.by_text(mine.same(theirs))]
    yield "top1_agreement", intervals.share_of_groups(same, mine.sizes), tokens
    same, clear = ([round(count) for count in mine.by_text(each)] for each in (mine.clear_same(theirs), theirs.clear()))
    if any(clear):
        yield "clear_top1_agreement", intervals.share_of_groups(same, clear), sum(clear)
    yield "greedy_agreement", _share(intervals.mean(measured.drift)), len(measured.drift)
    for batch, ratios in measured.pace[1].decode_ratios(measured.pace[0]).items():
        yield f"decode_ratio.{batch}", intervals.median(ratios), len(ratios)


def _perplexity(loss: Range | None) -> Range | None:
    if loss is None:
        return None
    low, high = (math.exp(min(each, intervals.LARGEST_EXPONENT)) for each in loss)
    return max(1.0, low), high


def _not_negative(interval: Range | None) -> Range | None:
    return None if interval is None else (max(0.0, interval[0]), max(0.0, interval[1]))


def _share(interval: Range | None) -> Range | None:
    return None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
