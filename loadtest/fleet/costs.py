"""Unit costs: what one of everything takes, as `python -m loadtest.unit_costs` measures and keeps it as JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadtest.fleet.instance import Line, Shape

RESULTS = Path(__file__).parents[1] / "results"


class EngineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process on `threads` cores."""

    reference: str
    threads: int
    line: Line
    line_error: float
    loop: tuple[float, float] = (0.0, 0.0)
    """Seconds of a step that the line does not know: its end, its news and their frame. Constant, per sequence; 0 where
    it was not measured, as before 2026-11-26."""
    tokens_a_second: dict[int, float]
    """Of answers, by the number of streams, behind prompts of 128 tokens."""
    prompt_tokens_a_second: float
    kv_bytes_a_token: int
    window: int


class ApiCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Processor seconds of the API process."""

    turn_seconds: float
    """Of a streamed turn without its token events."""
    event_seconds: float
    session_seconds: float
    """What a stored turn adds."""
    megabyte_seconds: float
    """Of 10^6 bytes of chat in a body: read, rendered and made into tokens."""
    scrape_seconds: float
    scrape_bytes: int


class DatabaseCosts(msgspec.Struct, frozen=True, kw_only=True):
    """PostgreSQL, for each turn of a stored session, or session, or instance."""

    rows_written: float
    commits: float
    fsyncs: float
    wal_bytes: float
    turn_bytes: float
    """Of tables and indexes, after the turn."""
    session_bytes: float
    """Of a session without a turn."""
    connections: int
    """Of an instance."""


class UnitCosts(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    date: str
    engine: EngineCosts
    api: ApiCosts
    database: DatabaseCosts | None = None
    """None where there is no PostgreSQL."""

    def shape(self, kv_cache_bytes: int) -> Shape:
        """Returns an instance with a KV cache of that size."""
        size = 16
        blocks = kv_cache_bytes // (size * self.engine.kv_bytes_a_token)
        engine, api = self.engine, self.api
        return Shape(engine.line, engine.loop, api.turn_seconds, api.event_seconds, blocks, size, engine.window)


def newest() -> Path:
    """Returns the newest committed unit costs. Raises FileNotFoundError where there are none."""
    found = sorted(RESULTS.glob("*/unit_costs.json"))
    if not found:
        raise FileNotFoundError(f"no unit_costs.json in {RESULTS}: python -m loadtest.unit_costs --out FILE makes one")
    return found[-1]


def read(path: Path) -> UnitCosts:
    return msgspec.json.decode(path.read_bytes(), type=UnitCosts)


def write(costs: UnitCosts, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=1) + b"\n")
