"""This module writes a result as one HTML file with its plots and its style, which needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from loadtest.runner import plots
from loadtest.runner.markdown import MEANING, facts, figure_table, limit_rows
from loadtest.runner.result import Result
from loadtest.runner.sample import Sample

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f23; --soft: #5c6670; --line: #d8dde3; --paper: #fff; --a: #0b6e4f;
  --b: #6a8fc0; --bad: #b3261e; --act: #b07a00 }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --soft: #9aa5b1; --line: #333b44; --paper: #14181c;
  --a: #4fc39a; --b: #86a9dd; --bad: #ff8a80; --act: #e6b450 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 800px;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } p, dd { overflow-wrap: anywhere }
.holds { color: var(--a) } .broken, .no, .not { color: var(--bad) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left }
td + td { font-variant-numeric: tabular-nums }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem } dt { color: var(--soft) } dd { margin: 0 }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: var(--soft) }
.grid { stroke: var(--line) } circle.a, rect.a { fill: var(--a) } circle.b { fill: var(--b); opacity: .55 }
.line { fill: none; stroke-width: 2 } .line.a { stroke: var(--a) } .line.b { stroke: var(--b) }
.fail { stroke: var(--bad) } .act { stroke: var(--act); stroke-dasharray: 4 3 } .key { color: var(--soft) }
.key .a { color: var(--a) } .key .b { color: var(--b) } .key .f { color: var(--bad) } .key .t { color: var(--act) }
"""


def page(result: Result, samples: Sequence[Sample]) -> str:
    title = f"Load: {result.scenario}"
    head = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    body = [
        f'<h1>{escape(title)}, <span class="{result.verdict.split()[0]}">{MEANING[result.verdict]}</span></h1>',
        *(f"<p>{escape(text)}</p>" for text in (result.description.strip(), result.why) if text),
        "<h2>Limits</h2>",
        _table(("limit", "value", "", "holds"), limit_rows(result)),
        *_plots(result, samples),
        "<h2>Figures</h2>",
        _table(*figure_table(result)),
        "<h2>Where they are from</h2>",
        _terms(facts(result)),
    ]
    if result.errors:
        body += [
            "<h2>Errors</h2>",
            _table(("requests", "error"), [(str(n), text) for text, n in result.errors.items()]),
        ]
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{meta}{head}</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _plots(result: Result, samples: Sequence[Sample]) -> list[str]:
    good = [each for each in samples if each.counts and not each.error]
    first = [each.ttft_ms for each in good if each.ttft_ms is not None]
    gaps = [gap for each in good for gap in each.itl_ms]
    drawn = [
        "<h2>Latency of each request</h2>",
        _key(("a", "● first token"), ("b", "● whole answer"), ("f", "× failed"), ("t", "┆ action")),
        plots.over_time(samples, result.actions),
    ]
    if first:
        drawn += ["<h2>Distribution</h2>", _key(("a", "– time to first token"), ("b", "– between tokens"))]
        drawn.append(plots.distribution(first, gaps))
    return [*drawn, "<h2>Throughput</h2>", plots.throughput(samples)]


def _key(*words: tuple[str, str]) -> str:
    return '<p class="key">' + " ".join(f'<span class="{name}">{text}</span>' for name, text in words) + "</p>"


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cell(text: str) -> str:
    return '<td class="no">no</td>' if text == "**no**" else f"<td>{escape(text)}</td>"


def _terms(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "\n".join(f"<dt>{escape(k)}</dt><dd>{escape(v.strip('`'))}</dd>" for k, v in pairs) + "</dl>"
