"""The gate says which limits keep an alias from pointing to a version, by the version's report. It reads no disk.

    a conversion (the lineage names the parent it was quantized from)   must predict as its parent does: KL divergence,
                                                                        likeliest tokens where the parent's are clear
    every version                                                       must be as good as the alias's present version:
                                                                        perplexity on the same text, recall, speed

A version that was trained again disagrees with the old one where it is better. So the gate asks it for no agreement.
Nor is a version held against what was made of it (the caller leaves that out): the way back from a conversion to its
source is always open.

A figure breaks a limit only if its whole 95 % interval does: chance alone never refuses a version. Figures without an
interval, as in reports of earlier releases, are compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from models.manifest import Manifest
from models.repository import intervals
from models.repository.intervals import Range
from models.repository.report import Comparison, Report


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
    sentence = f"KL divergence {value:.4f} nats{_shown((low, high), '.4f')}, at most {limit:g} of {of}"
    yield Check("kl", of, value, low, high, limit, low <= limit, sentence)
    if compared.clear_top1_agreement is None:
        return
    value, limit = compared.clear_top1_agreement, limits.top1_agreement
    low, high = _range(report, "compared.clear_top1_agreement", value)
    sentence = f"top-1 agreement where clear {value:.2%}{_shown((low, high), '.2%')}, at least {limit:.2%} of {of}"
    yield Check("clear_top1_agreement", of, value, low, high, limit, not high < limit, sentence)


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
    others = {part.sha256: part for part in theirs.texts.parts}
    pairs = [(part, others[part.sha256]) for part in report.texts.parts if part.sha256 in others]
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
    sentence = f"perplexity {change:+.2%}{_shown(interval, '+.2%')}, at most {limit:+.2%} of {of}"
    return Check(
        "perplexity_change", of, change, low, high, limit, low <= limit, sentence
    )  # a NaN is worse than any limit


def _shown(interval: Range, form: str) -> str:
    low, high = interval
    return f" ({low:{form}} to {high:{form}})" if low < high else ""
