"""The gate says which limits keep an alias from pointing to a version, by the version's report. It reads no disk.

    a conversion (the lineage names the parent it was quantized from)   must predict as its parent does: agreement
    every version                                                       must be as good as the alias's present version:
                                                                        perplexity on the same text, recall, speed

A version that was trained again disagrees with the old one where it is better. So the gate asks it for no agreement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.manifest import Manifest
from models.report import Report


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. `top1_agreement` and `decode_ratio` (at every batch size) are lower limits. `perplexity_change` and
    `recall_loss` (a share of the questions) are upper limits. With `measured` a version without a report breaks
    them."""

    top1_agreement: float = 0.98
    perplexity_change: float = 0.02
    decode_ratio: float = 0.8
    recall_loss: float = 0.05
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A version and its report, if it has one."""

    manifest: Manifest
    report: Report | None


def broken(candidate: Measured, limits: Limits, incumbent: Measured | None = None) -> tuple[str, ...]:
    """Returns a phrase for every limit that `candidate` breaks. `incumbent` is the version that it would replace.

    A version whose report has no comparison breaks no limit. A version without a report breaks none either, unless
    `limits.measured`. Perplexity is compared with the incumbent's if both were measured on the same text, else with
    that of the version that the report names.
    """
    report = candidate.report
    if report is None:
        return ("it was never measured",) if limits.measured else ()
    found = list(_against_reference(candidate.manifest, report, limits))
    if incumbent is not None and incumbent.report is not None and incumbent.report.digest != report.digest:
        found += _against_incumbent(report, incumbent.report, incumbent.manifest.reference, limits)
    return tuple(dict.fromkeys(found))


def _against_reference(manifest: Manifest, report: Report, limits: Limits) -> Iterator[str]:
    """Yields limits broken by the report alone, against the version that it was measured beside."""
    compared = report.compared
    if compared is None:
        return
    of = f"of {compared.reference}"
    is_converted = manifest.is_conversion and compared.digest == manifest.lineage.parent_digest
    if is_converted and compared.top1_agreement < limits.top1_agreement:
        yield f"top-1 agreement {compared.top1_agreement:.2%}, at least {limits.top1_agreement:.2%} {of}"
    if not compared.perplexity_change <= limits.perplexity_change:  # a NaN is worse than any limit
        yield _perplexity(compared.perplexity_change, limits, of)
    for batch, ratio in compared.decode_ratio.items():
        if ratio < limits.decode_ratio:
            yield f"decode at {batch} {ratio:.2f}x, at least {limits.decode_ratio:g}x {of}"


def _against_incumbent(report: Report, theirs: Report, reference: str, limits: Limits) -> Iterator[str]:
    of = f"of {reference}"
    if report.texts.sha256 == theirs.texts.sha256:
        change = report.perplexity / theirs.perplexity - 1
        if not change <= limits.perplexity_change:
            yield _perplexity(change, limits, of)
    mine, other = report.recall_share, theirs.recall_share
    if report.recall_cells != theirs.recall_cells or mine is None or other is None:
        return  # they were not asked alike
    if other - mine > limits.recall_loss:
        yield f"recall {mine:.1%} after {other:.1%}, at most {limits.recall_loss:.1%} less than that {of}"


def _perplexity(change: float, limits: Limits, of: str) -> str:
    return f"perplexity {change:+.2%}, at most {limits.perplexity_change:+.2%} {of}"
