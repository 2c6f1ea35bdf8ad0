"""This module makes an open loop's schedule: when each request is due, in seconds of the run.

The number of requests is fixed by rate and time. Given their number, the arrivals of a Poisson process are uniformly
distributed, so `poisson` draws that many uniform times: a run never has too few requests by chance.
"""

from __future__ import annotations

from random import Random

from service.evaluation.scenarios.scenario import OpenLoop


def due_times(load: OpenLoop) -> list[float]:
    """Returns the times in order; as many in the warm-up and in the counted time as the rate says."""
    begin, end = load.window
    draw = Random(load.seed)
    return _between(load, 0.0, begin, draw) + _between(load, begin, end, draw)


def _between(load: OpenLoop, begin: float, end: float, draw: Random) -> list[float]:
    count = round(load.rate * (end - begin))
    if load.arrivals == "constant":
        return [begin + at / load.rate for at in range(count)]
    return sorted(begin + draw.random() * (end - begin) for _ in range(count))
