"""This module computes a run's figures from its samples, and says what is worse than a baseline.

It knows no scenario and no file.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.runner.sample import Sample
from service.evaluation.scenarios.figures import AT_LEAST, Figures, percentile, percentiles


def figures(samples: Sequence[Sample], window: tuple[float, float]) -> Figures:
    """Returns every figure of `samples`, all of which count; `window` is their time in seconds of the run.

    Latencies are those of whole answers. Rates are over the time from the window's begin to its end, or to the end of
    the last whole answer where that is later.
    """
    good = [each for each in samples if not each.error]
    found: Figures = {}
    found |= percentiles("ttft", [each.ttft_ms for each in good if each.ttft_ms is not None])
    found |= percentiles("itl", [gap for each in good for gap in each.itl_ms])
    found |= percentiles("e2e", [each.e2e_ms for each in good])
    found["send_delay_p99_ms"] = percentile([each.send_delay_ms for each in samples], 99)
    found |= _shares(samples)
    seconds = max([window[1], *(each.ended for each in good)]) - window[0]
    found["tokens_per_second"] = sum(each.tokens for each in good) / seconds
    found["requests_per_second"] = len(good) / seconds
    found["versions"] = float(len({each.model for each in good if each.model}))
    return found


def _shares(samples: Sequence[Sample]) -> Figures:
    """Failed is every request without a whole answer. Of these some are refused politely, the others are errors."""
    if not samples:
        return {"failed_ratio": None, "refused_ratio": None, "error_ratio": None}
    failed = sum(bool(each.error) for each in samples) / len(samples)
    refused = sum(each.refused for each in samples) / len(samples)
    errors = sum(bool(each.error) and not each.refused for each in samples) / len(samples)
    return {"failed_ratio": failed, "refused_ratio": refused, "error_ratio": errors}


def worsened(name: str, value: float, by: float) -> float:
    """Returns the worst value that is not worse than `value` by more than the ratio `by`."""
    return value * (1 - by) if name in AT_LEAST else value * (1 + by)
