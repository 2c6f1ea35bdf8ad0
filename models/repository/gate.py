"""The gate says which limits keep an alias from pointing to a version, by the version's report. It reads no disk.

    a conversion (the lineage names the parent it was quantized from)   must predict as its parent does: KL divergence,
                                                                        likeliest tokens where the parent's are clear
    every version                                                       must be as good as the alias's present version:
                                                                        perplexity on the same text, recall, speed

A version that was trained again disagrees with the old one where it is better. So the gate asks it for no agreement.
Nor is a version held against what was made of it (the caller leaves that out): the way back from a conversion to its
source is always open.

A figure breaks a limit only if its whole 95 % interval does: chance alone never refuses a version. Figures without an
interval, as in reports of earlier releases, are compared as they are. What a version predicts also breaks a limit where
the figure itself is past ten times the limit: a few ruined texts among good ones make every interval wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from models.manifest import Manifest
from models.repository import intervals
from models.repository.intervals import Range
from models.repository.report import Comparison, Report

_FAR: Final = 10.0
"""Times a limit, for a figure's value. Chance moves the mean of a few good texts by a few times the limit. Plain int8,
a poor conversion that ruins no text, has 2.6 times the limit of KL divergence. A mean past this has ruined texts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. `top1_agreement` (of clear positions) and `decode_ratio` (at every batch size) are lower limits. `kl`
    (nats), `perplexity_change`, `recall_loss` (a share of the questions) and `memory_ratio` are upper limits. With
    `measured` a version without a report breaks them, and one with a check of seconds alone."""

    top1_agreement: float = 0.95
    kl: float = 0.02
    perplexity_change: float = 0.02
    decode_ratio: float = 0.8
    recall_loss: float = 0.05
    memory_ratio: float = math.inf
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A version and its report, if it has one."""

    manifest: Manifest
    report: Report | None


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against its limit. `of` is the version that the figure compares with, as name:version. `value` has the
    95 % interval from `low` to `high`, the same number where there is none. `sentence` says all of it."""

    measure: str
    of: str
    value: float
    low: float
    high: float
    limit: float
    passes: bool
    sentence: str


def broken(candidate: Measured, limits: Limits, incumbent: Measured | None = None) -> tuple[str, ...]:
    """Returns a phrase for every limit that `candidate` breaks. `incumbent` is the version that it would replace.

    A version whose report has no comparison breaks no limit. A version without a report breaks none either, unless
    `limits.measured`.
    """
    if candidate.report is None:
        return ("it was never measured",) if limits.measured else ()
    if candidate.report.effort == "check" and limits.measured:
        return ("it was checked for seconds and never measured",)
    found = (check.sentence for check in checks(candidate, limits, incumbent) if not check.passes)
    return tuple(dict.fromkeys(found))


def checks(candidate: Measured, limits: Limits, incumbent: Measured | None = None) -> tuple[Check, ...]:
    """Returns every figure of the report of `candidate` that has a limit; none without a report.

    Perplexity is compared with the incumbent's if both were measured on the same text, else with that of the version
    that the report names.
    """
    report = candidate.report
    if report is None:
        return ()
    found = list(_against_reference(candidate.manifest, report, report.compared, limits) if report.compared else ())
    if incumbent is not None and incumbent.report is not None and incumbent.report.digest != report.digest:
        found += _against_incumbent(report, incumbent.report, incumbent.manifest.reference, limits)
    return tuple(found)


def _against_reference(manifest: Manifest, report: Report, compared: Comparison, limits: Limits) -> Iterator[Check]:
    """Yields the figures of the report alone, against the version that it was measured beside."""
    of = compared.reference
    if manifest.is_conversion and compared.digest == manifest.lineage.parent_digest:
        yield from _agreement(report, compared, limits)
    change = _range(report, "compared.perplexity_change", compared.perplexity_change)
    yield _perplexity(compared.perplexity_change, change, limits, of)
    for batch, ratio in compared.decode_ratio.items():
        low, high = _range(report, f"compared.decode_ratio.{batch}", ratio)
        limit = limits.decode_ratio
        sentence = f"decode at {batch} {ratio:.2f}x{_shown((low, high), '.2f')}, at least {limit:g}x of {of}"
        yield Check(f"decode_ratio.{batch}", of, ratio, low, high, limit, not high < limit, sentence)


def _agreement(report: Report, compared: Comparison, limits: Limits) -> Iterator[Check]:
    """Yields how far a conversion predicts as its parent does."""
    of, value, limit = compared.reference, compared.kl, limits.kl
    low, high = _range(report, "compared.kl", value)
    passes, far = _judge(value, low, limit)
    sentence = f"KL divergence {value:.4f} nats{_shown((low, high), '.4f')}, at most {limit:g} of {of}{far}"
    yield Check("kl", of, value, low, high, limit, passes, sentence)
    if compared.clear_top1_agreement is None:
        return
    value, limit = compared.clear_top1_agreement, limits.top1_agreement
    low, high = _range(report, "compared.clear_top1_agreement", value)
    passes, far = _judge(1 - value, 1 - high, 1 - limit)
    sentence = f"top-1 agreement where clear {value:.2%}{_shown((low, high), '.2%')}, at least {limit:.2%} of {of}{far}"
    yield Check("clear_top1_agreement", of, value, low, high, limit, passes, sentence)


def _against_incumbent(report: Report, theirs: Report, reference: str, limits: Limits) -> Iterator[Check]:
    """Yields the figures of two reports that were measured apart."""
    if (change := _change(report, theirs)) is not None:
        yield _perplexity(*change, limits, reference)
    if limits.memory_ratio < math.inf:
        ratio, limit = report.speed.memory_bytes / theirs.speed.memory_bytes, limits.memory_ratio
        sentence = f"memory {ratio:.2f}x, at most {limit:g}x of {reference}"
        yield Check("memory_ratio", reference, ratio, ratio, ratio, limit, ratio <= limit, sentence)
    mine, other = report.recall_share, theirs.recall_share
    if report.recall_cells != theirs.recall_cells or mine is None or other is None:
        return  # they were not asked alike
    low, high = other - mine, other - mine
    if "recall" in report.intervals and "recall" in theirs.intervals:
        low, high = intervals.difference_of_shares(theirs.recall_counts, report.recall_counts)
    limit = limits.recall_loss
    sentence = f"recall {mine:.1%} after {other:.1%}, at most {limit:.1%} less than that of {reference}"
    yield Check("recall_loss", reference, other - mine, low, high, limit, not low > limit, sentence)


def _change(report: Report, theirs: Report) -> tuple[float, Range] | None:
    """Returns the perplexity's change on the texts that both reports have, and its interval. The texts pair the two
    versions, so that a hard text counts for neither. None for reports without a common text."""
    others = {part.sha256: part for part in theirs.texts.scored}
    pairs = [(part, others[part.sha256]) for part in report.texts.scored if part.sha256 in others]
    if not pairs:
        change = report.perplexity / theirs.perplexity - 1
        return (change, (change, change)) if report.texts.sha256 == theirs.texts.sha256 else None
    sums, sizes = [mine.loss - other.loss for mine, other in pairs], [mine.tokens for mine, _ in pairs]
    change = math.expm1(min(sum(sums) / sum(sizes), intervals.LARGEST_EXPONENT))
    return change, intervals.of_exponential(intervals.mean_of_groups(sums, sizes)) or (change, change)


def _range(report: Report, figure: str, value: float) -> Range:
    found = report.intervals.get(figure)
    return (found.low, found.high) if found else (value, value)


def _perplexity(change: float, interval: Range, limits: Limits, of: str) -> Check:
    low, high = interval
    limit = limits.perplexity_change
    passes, far = _judge(change, low, limit)
    sentence = f"perplexity {change:+.2%}{_shown(interval, '+.2%')}, at most {limit:+.2%} of {of}{far}"
    return Check("perplexity_change", of, change, low, high, limit, passes, sentence)


def _judge(value: float, low: float, limit: float) -> tuple[bool, str]:
    """Returns whether a figure, whose interval begins at `low`, keeps its upper limit; and the end of the sentence
    about one that breaks the limit by its value alone. A limit of 0 has no multiple."""
    if not low <= limit:  # a NaN is worse than any limit
        return False, ""
    is_far = value > _FAR * limit > 0
    return not is_far, f", and never more than {_FAR:g} times that" if is_far else ""


def _shown(interval: Range, form: str) -> str:
    low, high = interval
    return f" ({low:{form}} to {high:{form}})" if low < high else ""
