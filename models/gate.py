"""May an alias point to a version, by what was measured of it? Pure: a report and limits in, broken limits out."""

from __future__ import annotations

from dataclasses import dataclass

from models.report import Report


@dataclass(frozen=True, slots=True)
class Limits:
    """`top1_agreement` and `decode_ratio` (at every batch size) at least, `perplexity_change` at most. `measured`: a
    version without a report breaks them too."""

    top1_agreement: float = 0.98
    perplexity_change: float = 0.02
    decode_ratio: float = 0.8
    measured: bool = False


def broken(report: Report | None, limits: Limits) -> tuple[str, ...]:
    """A phrase for every limit that `report` breaks. A version that had nothing to be compared with breaks none, nor,
    unless `limits.measured`, does one that was never measured."""
    if report is None:
        return ("it was never measured",) if limits.measured else ()
    compared = report.compared
    if compared is None:
        return ()
    found = []
    if compared.top1_agreement < limits.top1_agreement:
        found.append(f"top-1 agreement {compared.top1_agreement:.2%}, at least {limits.top1_agreement:.2%}")
    if not compared.perplexity_change <= limits.perplexity_change:  # a NaN is worse than any limit
        found.append(f"perplexity {compared.perplexity_change:+.2%}, at most {limits.perplexity_change:+.2%}")
    for batch, ratio in compared.decode_ratio.items():
        if ratio < limits.decode_ratio:
            found.append(f"decode at {batch} {ratio:.2f}x, at least {limits.decode_ratio:g}x")
    return tuple(f"{each} of {compared.reference}" for each in found)
