"""The oracles: pure functions that say what is wrong with what the ledger holds; "" or nothing where all is right.

Turns of sessions have their own oracle, `loadtest.histories`. `tests/unit/test_torture.py` plants what each finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from loadtest.torture.endings import Torn, canonical, ending
from loadtest.torture.ledger import Exchange, Life, Lives

REFUSALS: Final = frozenset((429, 503))
LAG_SECONDS: Final = 1.0
"""A client beside its own load reads the end of an answer so much later than the service wrote it."""
References = Mapping[tuple[str, str, str], bytes]
"""The canonical bytes of answers to a kind, a question and a version, asked alone."""


def lost(exchange: Exchange, lives: Lives, references: References) -> str:
    """A connection may end before its answer where SIGKILL met it, or where nobody listened."""
    if not exchange.lost or exchange.has_left or lives.killed(exchange):
        return ""
    if exchange.lost == "refused" and lives.away(exchange):
        return ""
    got = f"{len(exchange.body)} bytes" if exchange.status else "no answer"
    return f"{exchange.lost} after {got}"


def refused(exchange: Exchange, lives: Lives, references: References) -> str:
    """Nothing but a service that starts or drains refuses the load, and it says when to come back."""
    if exchange.status < 400:
        return ""
    if exchange.status not in REFUSALS or not lives.away(exchange):
        return f"{exchange.status}: {exchange.body[:200].decode(errors='replace')}"
    return "" if exchange.retry_after else f"{exchange.status} without Retry-After"


def ended(exchange: Exchange, lives: Lives, references: References) -> str:
    """An answer comes to its dialect's end; while a service drains an error event may be its end, too."""
    if exchange.status != 200 or exchange.lost or exchange.has_left:
        return ""
    try:
        code = ending(exchange.dialect, exchange.body)
    except Torn as torn:
        return f"torn: {torn}"
    told = exchange.body[-300:].decode(errors="replace")
    return f"error event {code}: {told}" if code and not lives.drained(exchange) else ""


def same(exchange: Exchange, lives: Lives, references: References) -> str:
    """A whole answer is, byte for byte, the one that was given alone."""
    known = references.get((exchange.kind, exchange.question, exchange.version))
    if known is None or exchange.status != 200 or exchange.lost or exchange.has_left:
        return ""
    if ending(exchange.dialect, exchange.body) or canonical(exchange.dialect, exchange.body) == known:
        return ""
    got = canonical(exchange.dialect, exchange.body)
    at = next((at for at, (one, other) in enumerate(zip(got, known, strict=False)) if one != other), len(known))
    return f"another answer than alone, at byte {at}: {got[max(0, at - 40) : at + 20].decode(errors='replace')!r}"


Oracle = Callable[[Exchange, Lives, References], str]
OF_EXCHANGES: Final[Sequence[Oracle]] = (lost, refused, ended, same)


def judged(exchange: Exchange, lives: Lives, references: References) -> str:
    """Returns the first oracle's finding."""
    found = (oracle(exchange, lives, references) for oracle in OF_EXCHANGES)
    return next((f"{exchange.kind} {exchange.question}: {wrong}" for wrong in found if wrong), "")


def of_drain(life: Life, probes: Sequence[Exchange], answered_at: float, exit_status: int) -> list[str]:
    """`probes` are newcomers and reads of `/livez` since SIGTERM; the last answer that ran then ended at `answered_at`.
    Until then `/livez` is 200, and newcomers are 503 with Retry-After from the first of them on. Afterwards the port
    may be closed, but a connection that was accepted is answered."""
    wrong = [] if exit_status == 0 else [f"the exit status is {exit_status}"]
    refusing_at = min((probe.sent_at for probe in probes if probe.status == 503), default=inf)
    for probe in probes:
        if probe.lost == "refused" and probe.sent_at >= answered_at - LAG_SECONDS:
            continue
        said = probe.lost or f"{probe.status}, Retry-After {probe.retry_after!r}"
        is_early = probe.sent_at < refusing_at and probe.status == 200
        is_right = probe.status == 200 if probe.kind == "livez" else probe.status == 503 and bool(probe.retry_after)
        if probe.lost or not (is_right or is_early):
            at, until = probe.sent_at - life.end_at, answered_at - life.end_at
            wrong.append(f"{probe.kind} {at:.2f} s after SIGTERM: {said}; answers ran until {until:.2f} s")
    return wrong


def at_rest(metrics: Mapping[str, float]) -> list[str]:
    """Behind the load nothing is held."""
    return [f"{name} is {value:g} at rest" for name, value in metrics.items() if value]


@dataclass(frozen=True, slots=True)
class Held:
    """What one process holds."""

    mib: float
    descriptors: int
    threads: int


POOL_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""An event loop's pool has so many threads at most (`asyncio.to_thread`). It begins with one, and never ends one."""


def kept(before: Mapping[str, Held], after: Mapping[str, Held]) -> list[str]:
    """Descriptors are as many behind the load as before; threads as well, but for those of the event loop's pool."""
    wrong = []
    for name in before.keys() & after.keys():
        for what, most in ("descriptors", 0), ("threads", POOL_THREADS - 1):
            more = getattr(after[name], what) - getattr(before[name], what)
            wrong += [f"{name} has {more} {what} more"] if more > most else []
    return wrong


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Returns how much a value of `(seconds, value)` grows in an hour: the median slope of all pairs (Theil and Sen),
    which a few outliers do not move. 0 of fewer than two."""
    pairs = [
        (later - value) / (then - seconds)
        for at, (seconds, value) in enumerate(samples)
        for then, later in samples[at + 1 :]
        if then > seconds
    ]
    return 3600 * median(pairs) if pairs else 0.0
