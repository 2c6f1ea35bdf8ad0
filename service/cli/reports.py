"""This module prints reports: a column for each version, a row for each figure with its 95 % interval; and gathers what
is told of a version. It measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from models.errors import Corrupt
from models.manifest import Manifest
from models.repository.report import Report, on_shared_texts
from models.repository.repository import Repository
from service.cli.foreign import Listing
from service.cli.terminal import console

NOT_MEASURED: Final = "not measured yet"
DAMAGED: Final = "damaged"
STATES: Final = {"not_measured": NOT_MEASURED, "measuring": "measuring", DAMAGED: DAMAGED}
_ELSEWHERE = {"name", "version", "files", "layers"}


def report_of(store: Repository, manifest: Manifest) -> tuple[Report | None, str]:
    """Returns the version's report and how far it is; of a damaged one no report, and the state `damaged`."""
    try:
        report = store.report(manifest)
    except Corrupt:
        return None, DAMAGED
    return report, store.report_state(manifest, report)


def shown_state(store: Repository, manifest: Manifest) -> str:
    """Returns what the version's report is: `quick` or `full`, or why there is none."""
    report, state = report_of(store, manifest)
    return report.effort if report and state == "measured" else STATES[state]


def print_reports(store: Repository, manifests: list[Manifest]) -> None:
    """Prints the versions' facts and reports, and how to measure a version without a readable report."""
    measured = [(manifest, report_of(store, manifest)[0]) for manifest in manifests]
    table = Listing("", *(manifest.reference for manifest in manifests))
    rows = {label: [figure(*each) for each in measured] for label, figure in _FIGURES.items()}
    rows["perplexity"] = _perplexities([report for _, report in measured])
    for label in ("precision", "size", "digest", "perplexity", *_FIGURES):
        cells = rows.pop(label, [])
        if any(cells):
            table.add_row(label, *(cell or "–" for cell in cells))
    console.print(table)
    for manifest, report in measured:
        if report is None:
            state = shown_state(store, manifest)
            hint = f": dosirak model evaluate {manifest.reference}" if state in (NOT_MEASURED, DAMAGED) else ""
            console.print(f"{manifest.reference}: {state}{hint}", highlight=False)


def _rates(name: str) -> Callable[[Manifest, Report | None], str]:
    def figure(manifest: Manifest, report: Report | None) -> str:
        found = report.speed.decode_tokens_per_second.get(name) if report else None
        if report is None or found is None:
            return ""
        shown = f"{found:,.0f}{_interval(report, f'speed.decode_tokens_per_second.{name}', ',.0f')}"
        ratio = report.compared.decode_ratio.get(name) if report.compared else None
        if ratio is None:
            return shown
        return f"{shown}, {ratio:.2f}x{_interval(report, f'compared.decode_ratio.{name}', '.2f')}"

    return figure


def _compared(name: str, form: str) -> Callable[[Manifest, Report | None], str]:
    def figure(manifest: Manifest, report: Report | None) -> str:
        value = getattr(report.compared, name) if report and report.compared else None
        if report is None or value is None:
            return ""
        return f"{value:{form}}{_interval(report, f'compared.{name}', form)}"

    return figure


def _recalled(manifest: Manifest, report: Report | None) -> str:
    if report is None or report.recall_share is None:
        return ""
    return f"{report.recall_share:.1%}{_interval(report, 'recall', '.1%')} of {report.recall_counts[1]}"


def _prefill(manifest: Manifest, report: Report | None) -> str:
    if report is None:
        return ""
    figure = "speed.prefill_tokens_per_second"
    return f"{report.speed.prefill_tokens_per_second:,.0f}{_interval(report, figure, ',.0f')}"


def _perplexities(reports: list[Report | None]) -> list[str]:
    """Returns the perplexities over the texts that the reports share with the first of them."""
    cells = []
    for report, shared in zip(reports, on_shared_texts(reports), strict=True):
        if report is None:
            cells.append("")
        elif shared is None:
            cells.append("other texts")
        else:
            interval = _interval(report, "perplexity", ".4f") if shared == report.perplexity else ""
            cells.append(f"{shared:.4f}{interval}")
    return cells


def _interval(report: Report, figure: str, form: str) -> str:
    """Returns the interval of a figure in brackets; nothing where the report has none."""
    found = report.intervals.get(figure)
    return f" [{found.low:{form}} … {found.high:{form}}]" if found else ""


_FIGURES: dict[str, Callable[[Manifest, Report | None], str]] = {
    "precision": lambda manifest, report: manifest.precision,
    "size": lambda manifest, report: f"{manifest.size / 1e6:.1f} MB",
    "digest": lambda manifest, report: manifest.short_digest,
    "compared with": lambda manifest, report: report.compared.reference if report and report.compared else "",
    "... change": _compared("perplexity_change", "+.2%"),
    "KL, nats": _compared("kl", ".5f"),
    "top-1 agreement": _compared("top1_agreement", ".2%"),
    "... where clear": _compared("clear_top1_agreement", ".2%"),
    "greedy agreement": _compared("greedy_agreement", ".1%"),
    "recall": _recalled,
    "memory": lambda manifest, report: f"{report.speed.memory_bytes / 1e6:.1f} MB" if report else "",
    "load": lambda manifest, report: f"{report.speed.load_seconds:.1f} s" if report else "",
    "prefill, tokens/s": _prefill,
    **{f"decode at {batch}, tokens/s": _rates(batch) for batch in ("1", "8", "32")},
    "text": lambda manifest, report: f"{report.texts.name}, {report.texts.tokens:,} tokens" if report else "",
    "measured": lambda manifest, report: f"{report.effort}, {report.seconds:.0f} s" if report else "",
}


def aliases_of(store: Repository, manifest: Manifest) -> list[str]:
    return sorted(alias for alias, version in store.aliases(manifest.name).items() if version == manifest.version)


def facts_of(store: Repository, manifest: Manifest) -> dict[str, Any]:
    """Returns what is told of a version, its report included."""
    report, state = report_of(store, manifest)
    facts = {key: value for key, value in asdict(manifest).items() if key not in _ELSEWHERE}
    return {
        "model": manifest.reference,
        "digest": manifest.digest,
        "bytes": manifest.size,
        "aliases": aliases_of(store, manifest),
        **facts,
        "report": report,
        "report_state": state,
    }
