"""This module writes plots as SVG: bars in groups, and named points. It uses no library and keeps no state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

COLOURS: Final = ("#0b6e4f", "#74a57f", "#c84630", "#e8a87c", "#5b5f97", "#b8b8d1", "#7d6b7d", "#d4a017")
WIDTH, PLOT_HEIGHT, LEFT, TOP = 860, 260, 60, 40


def bars(title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Grouped bars: for each name of `series` a value for each of `groups`, None where there is none."""
    largest = max((value for values in series.values() for value in values if value is not None), default=1.0) or 1.0
    slot = (WIDTH - LEFT - 20) / max(1, len(groups))
    width = slot * 0.85 / max(1, len(series))
    drawn = [_text(LEFT, 22, f"{title} ({unit})", 15), *_scale(largest)]
    for at, group in enumerate(groups):
        drawn.append(_text(LEFT + at * slot, TOP + PLOT_HEIGHT + 18, group, 12))
    for row, (name, values) in enumerate(series.items()):
        colour = COLOURS[row % len(COLOURS)]
        for at, value in enumerate(values):
            if value is not None:
                drawn += _bar(LEFT + at * slot + row * width, width * 0.92, value, largest, colour)
        x, y = LEFT + (row % 3) * 265, TOP + PLOT_HEIGHT + 34 + (row // 3) * 18
        drawn += [f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>', _text(x + 16, y + 10, name, 11)]
    return _drawing(drawn, TOP + PLOT_HEIGHT + 60 + 18 * ((len(series) - 1) // 3))


def points(title: str, x_unit: str, y_unit: str, found: Mapping[str, tuple[float, float]]) -> str:
    """A named point for each pair; y has a scale of powers of ten, x begins at 0. Every value must be above 0."""
    decades = [math.log10(y) for _, y in found.values()] or [0.0]
    low, high = math.floor(min(decades)), math.ceil(max(decades))
    high += high == low
    largest = 1.15 * max((x for x, _ in found.values()), default=1.0)
    drawn = [_text(LEFT, 22, f"{title} ({y_unit} by {x_unit})", 15)]
    for decade in range(low, high + 1):
        y = TOP + PLOT_HEIGHT * (high - decade) / (high - low)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(_text(4, y + 4, f"{10.0**decade:g}", 10))
    for part in range(5):
        x = LEFT + (WIDTH - LEFT - 20) * part / 4
        drawn.append(_text(x, TOP + PLOT_HEIGHT + 18, f"{largest * part / 4:.0f}", 10))
    for row, (name, (x, y)) in enumerate(found.items()):
        across = LEFT + (WIDTH - LEFT - 20) * x / largest
        down = TOP + PLOT_HEIGHT * (high - math.log10(y)) / (high - low)
        drawn.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="5" fill="{COLOURS[row % len(COLOURS)]}"/>')
        drawn.append(_text(across + 8, down + 4, name, 11))
    return _drawing(drawn, TOP + PLOT_HEIGHT + 40)


def _drawing(drawn: Sequence[str], height: int) -> str:
    size = f'width="{WIDTH}" height="{height}"'
    body = "\n".join(drawn)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n{body}\n</svg>\n'


def _bar(x: float, width: float, value: float, largest: float, colour: str) -> list[str]:
    height = PLOT_HEIGHT * value / largest
    y = TOP + PLOT_HEIGHT - height
    label = f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>',
        _text(x, y - 3, label, 9),
    ]


def _scale(largest: float) -> list[str]:
    lines = []
    for part in range(5):
        y = TOP + PLOT_HEIGHT * (1 - part / 4)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(_text(4, y + 4, f"{largest * part / 4:.4g}", 10))
    return lines


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(text)}</text>'
