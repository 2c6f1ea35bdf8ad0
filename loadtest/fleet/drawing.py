"""Lines over logarithmic axes, as an SVG that stands alone. It computes no figure and uses no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

COLOURS: Final = ("#0b6e4f", "#c84630", "#5b5f97", "#d4a017", "#7d6b7d", "#1f77b4", "#8c564b")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 380, 76, 44, 20, 96
Points = Sequence[tuple[float, float]]


def lines(
    title: str, axes: tuple[str, str], series: Mapping[str, Points], marks: Mapping[str, float] | None = None
) -> str:
    """Both axes are logarithmic: points with a value of 0 are left out. `marks` are horizontal lines with a name."""
    shown = {name: [point for point in points if min(point) > 0] for name, points in series.items()}
    across = _Scale([x for points in shown.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    up = _Scale(
        [y for points in shown.values() for _, y in points] + list((marks or {}).values()), HEIGHT - BOTTOM, TOP
    )
    body = [_text(LEFT, 20, title, 15), _text(LEFT, 36, axes[1], 11), *_grid(across, up)]
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 34, axes[0], 11, "middle"))
    for name, value in (marks or {}).items():
        y = up.at(value)
        body.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#c84630" stroke-dasharray="5 4" fill="none"/>')
        body.append(_text(WIDTH - RIGHT - 4, y - 4, name, 11, "end"))
    for at, (name, points) in enumerate(shown.items()):
        colour = COLOURS[at % len(COLOURS)]
        path = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in points)
        body.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        body += [f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        x, y = LEFT + (at % 4) * 190, HEIGHT - BOTTOM + 52 + (at // 4) * 20
        body += [f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>', _text(x + 16, y + 10, name, 11)]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    drawn = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" {size} '
        f'font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>\n{drawn}\n</svg>\n'
    )


class _Scale:
    """Maps values to places, by their logarithm."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._low, self._high = log10(min(values)), log10(max(values))
        if self._high - self._low < 0.1:
            self._low, self._high = self._low - 0.1, self._high + 0.1
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        return self._begin + (self._end - self._begin) * (log10(value) - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        """Returns powers of ten; with fewer than three of them, twice and five times these too."""
        steps = (1, 2, 5) if self._high - self._low < 3 else (1,)
        powers = range(floor(self._low), ceil(self._high) + 1)
        found = [step * 10.0**power for power in powers for step in steps]
        return [each for each in found if self._low - 1e-9 <= log10(each) <= self._high + 1e-9]


def _grid(across: _Scale, up: _Scale) -> list[str]:
    drawn = []
    for value in up.ticks():
        y = up.at(value)
        drawn.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(LEFT - 6, y + 4, short(value), 10, "end"))
    for value in across.ticks():
        x = across.at(value)
        drawn.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        drawn.append(_text(x, HEIGHT - BOTTOM + 16, short(value), 10, "middle"))
    return drawn


def short(value: float) -> str:
    """Returns a value in at most three digits, with k, M, G or T where it is large."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit * 0.9995:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#222" text-anchor="{anchor}">{escape(text)}</text>'
