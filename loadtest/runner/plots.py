"""This module draws a run as SVG: latencies over the time, their distribution, and tokens a second.

Colours and fonts are classes of the page's style sheet. It computes no figure, and draws at most `MOST` points.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, log10
from typing import Final

from loadtest.runner.sample import Sample
from service.evaluation.scenarios.figures import percentile

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 240, 64, 12, 34
MOST: Final = 4000
Points = list[tuple[float, float]]


class Axes:
    """Maps values to places of a drawing. `largest` are the ends of both axes, which begin at 0."""

    def __init__(self, largest: tuple[float, float]) -> None:
        self._x, self._y = _round_up(largest[0]), _round_up(largest[1])

    def at(self, x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM
        return LEFT + wide * min(x / self._x, 1), TOP + high * (1 - min(y / self._y, 1))

    def drawn(self, across: str, up: str) -> list[str]:
        lines = []
        for part in range(5):
            x, y = self.at(self._x * part / 4, self._y * part / 4)
            lines.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - 12}"/>')
            lines.append(_text(LEFT - 6, y + 4, f"{self._y * part / 4:g}", "end"))
            lines.append(_text(x, HEIGHT - 18, f"{self._x * part / 4:g}", "middle"))
        lines.append(_text((LEFT + WIDTH) / 2, HEIGHT - 4, across, "middle"))
        return [*lines, _text(LEFT + 4, TOP + 10, up, "start")]


def over_time(samples: Sequence[Sample], actions: Sequence[tuple[float, str]]) -> str:
    """TTFT and the whole answer's time of every request, at its second; failed ones as crosses at the bottom."""
    good = [each for each in samples if not each.error]
    first: Points = [(each.due, each.ttft_ms) for each in good if each.ttft_ms is not None]
    whole: Points = [(each.due, each.e2e_ms) for each in good]
    axes = Axes((max((each.due for each in samples), default=1.0), max((y for _, y in whole), default=1.0)))
    body = axes.drawn("seconds of the run", "ms")
    for name, points in (("b", whole), ("a", first)):
        body += [_dot(axes, point, name) for point in thinned(points)]
    body += [_cross(axes, each.due) for each in samples if each.error][:MOST]
    for at, words in actions:
        x, _ = axes.at(at, 0)
        body.append(f'<path class="act" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"><title>{escape(words)}</title></path>')
    return _svg("latency of each request", body)


def distribution(first: Sequence[float], gaps: Sequence[float]) -> str:
    """The percent of requests with at most so many ms to the first token, and of gaps between tokens; the slowest
    percent is left out, or nothing else could be seen."""
    series = {name: sorted(values) for name, values in (("a", first), ("b", gaps)) if values}
    axes = Axes((max([percentile(values, 99) or 0.0 for values in series.values()], default=1.0), 100.0))
    body = axes.drawn("ms, without the slowest percent", "%")
    for name, values in series.items():
        steps = [(value, 100 * (at + 1) / len(values)) for at, value in enumerate(values)]
        shown = steps[: max(1, len(steps) * 99 // 100)]
        places = (axes.at(*point) for point in thinned([(steps[0][0], 0.0), *shown]))
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        body.append(f'<path class="line {name}" d="M{path}"/>')
    return _svg("distribution of time to first token and between tokens", body)


def throughput(samples: Sequence[Sample]) -> str:
    """Tokens of the answers that ended in each second of the run."""
    ended: dict[int, int] = {}
    for each in samples:
        if not each.error:
            ended[int(each.ended)] = ended.get(int(each.ended), 0) + each.tokens
    axes = Axes((max(ended, default=0) + 1.0, max(ended.values(), default=1)))
    body = axes.drawn("seconds of the run", "tokens of answers that ended, a second")
    for second, tokens in sorted(ended.items()):
        (left, top), (right, bottom) = axes.at(second, tokens), axes.at(second + 1, 0)
        size = f'width="{max(right - left - 1, 0.5):.1f}" height="{bottom - top:.1f}"'
        body.append(f'<rect class="a" x="{left:.1f}" y="{top:.1f}" {size}/>')
    return _svg("tokens a second", body)


def thinned(points: Points) -> Points:
    """Every so many points and the last one."""
    step = max(1, ceil(len(points) / MOST))
    return points if step == 1 else [*points[::step], points[-1]]


def _round_up(value: float) -> float:
    """To 1, 2 or 4 and zeros, so that quarters are short numbers."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** int(log10(value) // 1)
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value)


def _dot(axes: Axes, point: tuple[float, float], name: str) -> str:
    x, y = axes.at(*point)
    return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>'


def _cross(axes: Axes, second: float) -> str:
    x, y = axes.at(second, 0)
    return f'<path class="fail" d="M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(label: str, body: Sequence[str]) -> str:
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">\n' + "\n".join(body) + "\n</svg>\n"
