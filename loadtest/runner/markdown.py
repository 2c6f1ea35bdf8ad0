"""This module writes a result as a page of Markdown. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtest.runner.result import Result
from service.evaluation.scenarios.figures import shown

MEANING = {"holds": "every limit holds", "broken": "a limit is broken", "not measured": "not measured"}


def page(result: Result) -> str:
    parts = [f"# Load: {result.scenario}, {MEANING[result.verdict]}", result.description.strip(), result.why]
    parts += [table(("limit", "value", "", "holds"), limit_rows(result)), table(*figure_table(result))]
    parts += [f"- {name}: {text}" for name, text in facts(result)]
    parts += [f"- {count} x `{error}`" for error, count in result.errors.items()]
    return "\n\n".join(_joined(part for part in parts if part)) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def limit_rows(result: Result) -> list[tuple[str, str, str, str]]:
    return [
        (
            check.figure + (" against the baseline" if check.against == "baseline" else ""),
            shown(check.value),
            check.sentence.partition("; ")[2].removesuffix(", by the baseline"),
            "yes" if check.holds else "**no**",
        )
        for check in result.limits
    ]


def figure_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Returns head and rows: every figure, beside the baseline's where there is one."""
    head, rows = ["figure", "value"], [[name, shown(value)] for name, value in result.figures.items()]
    if result.baseline:
        head += ["baseline", "ratio"]
        for row in rows:
            value, before = result.figures[row[0]], result.baseline.figures.get(row[0])
            row += [shown(before), f"{value / before:.2f}" if value is not None and before else "–"]
    return head, rows


def facts(result: Result) -> list[tuple[str, str]]:
    """Returns where the figures are from."""
    found = [
        ("Host", str(result.host)),
        ("Server", f"{result.url}{_server(result)}"),
        ("Commit", result.commit),
        ("Command", f"`{result.command}`"),
        ("Date", result.date),
        ("Requests", f"{result.counted} count of {result.requests}, {result.window[0]:g} to {result.window[1]:g} s"),
        ("Load generator", f"{result.generator_cores:.2f} cores"),
        ("Scenario's digest", result.scenario_digest),
    ]
    if result.versions:
        found.append(("Answers", ", ".join(f"{count} of {model}" for model, count in result.versions.items())))
    if result.baseline:
        found.append(("Baseline", f"commit {result.baseline.commit}, {result.baseline.date}"))
    return found + [("Action", f"{words}, at {at:.1f} s") for at, words in result.actions]


def _server(result: Result) -> str:
    if not result.server:
        return ""
    said = result.server
    return f", Dosirak {said['version']}, {said['model']} ({said['digest']}), {said['precision']}, {said['device']}"


def _joined(parts: Iterable[str]) -> list[str]:
    """List items stay together."""
    found: list[str] = []
    for part in parts:
        if part.startswith("- ") and found and found[-1].startswith("- "):
            found[-1] += f"\n{part}"
        else:
            found.append(part)
    return found
