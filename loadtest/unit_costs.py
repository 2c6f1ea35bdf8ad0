"""This test measures unit costs: what one token, turn, session and instance takes of cores, memory and PostgreSQL.

    python -m loadtest.unit_costs [REFERENCE] [--out FILE]

Seconds are the processor's, so that other load changes little. The engine is real, in this process, on one thread. The
API process is this process too, with a scripted engine that costs almost nothing. PostgreSQL is a server of its own in
a temporary directory, on the machine's disk; where there is none, its figures are left out. `loadtest.scale` reads
FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import platform
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
import psutil

from loadtest.fleet.costs import ApiCosts, DatabaseCosts, EngineCosts, UnitCosts, write
from loadtest.session_turns import ANSWER, QUESTION, publish
from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.engine.process.core import EngineCore
from service.engine.process.loop import Channel
from service.engine.process.worker import build_scheduler
from service.engine.protocol.messages import Request, SamplingParams, Step
from service.engine.runner.loading.building import build_runner
from service.observability.logs import configure_logging
from service.settings import Settings
from service.text.tokenizer import Tokenizer
from tests import postgres
from tests.fake_service import INFO, World, serving

STREAMS: Final = (1, 8, 32)
PROMPT, STEPS = 128, 60
SHORT, LONG = 16, 144
ROUNDS: Final = 30
SESSIONS_AT_ONCE: Final = 16
TURNS: Final = 15
IDLE_SESSIONS: Final = 200
FIRST_ID: Final = 300
TELLING_SECONDS: Final = 10.5
"""An idle backend of PostgreSQL tells its counters after ten seconds."""
KV_BYTES: Final = 1 << 28
FRAME_BYTES: Final = 1 << 20
"""More than a frame of MAX_STEPS steps has."""


def engine_costs(settings: Settings, reference: str) -> EngineCosts:
    repository = Repository(settings.data_dir)
    manifest = repository.resolve(reference)
    config = msgspec.structs.replace(engine_config(settings, repository, manifest), speculation=False)
    runner, info = build_runner(config, lambda phase, fraction: None)
    core = EngineCore(runner, build_scheduler(config, runner, info.blocks_total), time.process_time, info.work)
    gc.collect()
    draw = Random(1)
    decoding = {streams: _decoding(core, streams, draw, runner.vocab_size) for streams in STREAMS}
    few, many = min(STREAMS), max(STREAMS)
    each = (decoding[many].beside - decoding[few].beside) / (many - few)
    prefill = _prefilling(core, draw, runner.vocab_size, manifest.context_window)
    a, b, c, d = core.stats.cost
    return EngineCosts(
        reference=f"{manifest.name}:{manifest.version} {manifest.precision}",
        threads=info.threads,
        line=(a, b, c, d),
        line_error=core.stats.cost_error,
        loop=(decoding[few].beside - each * few, each),
        tokens_a_second={streams: streams / found.whole for streams, found in decoding.items()},
        prompt_tokens_a_second=prefill,
        kv_bytes_a_token=info.kv_bytes_per_block // info.block_size,
        window=manifest.context_window,
    )


class Decoding(NamedTuple):
    """Medians of decode steps, in seconds of the processor."""

    whole: float
    beside: float
    """What the loop of an engine process does beside the step that the cost line knows."""


def _decoding(core: EngineCore, streams: int, draw: Random, vocabulary: int) -> Decoding:
    """Returns what a step takes while all streams decode, as an engine process runs it: inbox, step, news."""
    for number in range(streams):
        prompt = tuple(draw.randrange(FIRST_ID, vocabulary) for _ in range(PROMPT))
        core.add(Request(f"{streams}-{number}", prompt, SamplingParams(max_tokens=STEPS * 4)))
    ours, theirs = socket.socketpair()
    channel, seconds, beside = Channel(ours.detach()), list[float](), list[float]()
    with theirs:
        while len(seconds) < STEPS and core.has_work:
            began = time.process_time()
            channel.receive(0.0)
            outputs = core.step()
            channel.send(Step(tuple(outputs), core.stats, core.take_steps()))
            ended = time.process_time()
            theirs.recv(FRAME_BYTES)
            if core.stats.step_tokens == core.stats.step_sequences == streams:
                seconds.append(ended - began)
                beside.append(ended - began - core.stats.step_seconds)
    core.abort([f"{streams}-{number}" for number in range(streams)])
    core.step()
    return Decoding(median(seconds), median(beside))


def _prefilling(core: EngineCore, draw: Random, vocabulary: int, window: int) -> float:
    """Returns the prompt tokens a second of prompts that fill most of the window, one after the other."""
    rates = list[float]()
    for number in range(6):
        prompt = tuple(draw.randrange(FIRST_ID, vocabulary) for _ in range(window * 3 // 4))
        core.add(Request(f"prefill-{number}", prompt, SamplingParams(max_tokens=1)))
        began = time.process_time()
        while core.has_work:
            core.step()
        rates.append(len(prompt) / (time.process_time() - began))
    return median(rates)


def _spoken(request: Request, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(ANSWER, add_special_tokens=False)


ENGINE: Final = {"info": msgspec.structs.replace(INFO, blocks_total=256), "script": _spoken}
"""Has room for the window."""


async def api_costs(folder: Path) -> ApiCosts:
    publish(folder)
    async with serving(folder, engine=ENGINE, database_url=f"sqlite+aiosqlite:///{folder}/sessions.db") as world:
        await _streamed(world, SHORT)
        pairs = [(await _streamed(world, SHORT), await _streamed(world, LONG)) for _ in range(ROUNDS)]
        short, long = (median(each) for each in zip(*pairs, strict=True))
        session = (await world.client.post("/v1/sessions", json={})).json()["id"]
        stored = [await _streamed(world, SHORT, session_id=session) for _ in range(ROUNDS)]
        event = (long - short) / (LONG - SHORT)
        scrapes = [await _scraped(world) for _ in range(ROUNDS)]
        return ApiCosts(
            turn_seconds=short - SHORT * event,
            event_seconds=event,
            session_seconds=median(stored[1:]) - short,
            megabyte_seconds=await _megabyte(world),
            scrape_seconds=median(seconds for seconds, _ in scrapes),
            scrape_bytes=scrapes[-1][1],
        )


async def _streamed(world: World, tokens: int, **more: Any) -> float:
    body = {"messages": [{"role": "user", "content": QUESTION}], "parameters": {"max_new_tokens": tokens}, **more}
    began = time.process_time()
    response = await world.client.post("/generate_stream", json=body)
    spent = time.process_time() - began
    assert response.status_code == 200, response.text
    return spent


async def _scraped(world: World) -> tuple[float, int]:
    began = time.process_time()
    response = await world.client.get("/metrics")
    return time.process_time() - began, len(response.content)


async def _megabyte(world: World) -> float:
    """Has the tokens of a long chat counted: it is read, rendered and made into tokens as a turn's is, and no more."""
    lines = [{"role": "assistant" if at % 2 else "user", "content": f"{at} {QUESTION * 4}"} for at in range(999)]
    size = len(msgspec.json.encode(lines))
    spent = list[float]()
    for _ in range(5):
        began = time.process_time()
        response = await world.client.post("/tokenize", json={"messages": lines})
        spent.append(time.process_time() - began)
        response.raise_for_status()
    return median(spent) * 1e6 / size


async def database_costs(folder: Path) -> DatabaseCosts:
    server = postgres.server()
    url = server.new_database()
    name = url.partition("@/")[2].partition("?")[0]
    publish(folder)
    async with serving(folder, engine=ENGINE, database_url=url) as world:
        await _made(world)  # migrates
        empty = _stored_bytes(server, name)
        sessions = [await _made(world) for _ in range(IDLE_SESSIONS)]
        of_sessions = _stored_bytes(server, name) - empty
        used = sessions[:SESSIONS_AT_ONCE]
        await _turns(world, used, 1)
        before = _counters(server, name)
        await _turns(world, used, TURNS)
        after = _counters(server, name)
        turns = SESSIONS_AT_ONCE * TURNS
        told = {key: (after[key] - before[key]) / turns for key in after}
        return DatabaseCosts(
            rows_written=told["rows"],
            commits=told["commits"],
            fsyncs=told["fsyncs"],
            wal_bytes=told["wal"],
            turn_bytes=told["size"],
            session_bytes=of_sessions / IDLE_SESSIONS,
            connections=int(after["connections"]),
        )


async def _made(world: World) -> str:
    return str((await world.client.post("/v1/sessions", json={})).json()["id"])


async def _turns(world: World, sessions: Sequence[str], turns: int) -> None:
    async def talk(session: str) -> None:
        for _ in range(turns):
            await _streamed(world, LONG, session_id=session)

    await asyncio.gather(*map(talk, sessions))


def _stored_bytes(server: postgres.Server, name: str) -> float:
    return float(server.sql("SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables", name))


def _counters(server: postgres.Server, name: str) -> dict[str, float]:
    """Returns this database's counters, once its idle backends have told theirs."""
    time.sleep(TELLING_SECONDS)
    asked = {
        "rows": "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables",
        "commits": "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
        "fsyncs": "SELECT wal_sync FROM pg_stat_wal",
        "wal": "SELECT wal_bytes FROM pg_stat_wal",
        "connections": f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()",
    }
    counted = {key: float(server.sql(query, name)) for key, query in asked.items()}
    return {**counted, "size": _stored_bytes(server, name)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", nargs="?", default="demo")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    configure_logging(Settings(log_level="error"))
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_costs(_settings(Path(folder, "engine"), options.reference), options.reference)
        api = asyncio.run(api_costs(Path(folder, "api")))
        missing = postgres.missing()
        database = asyncio.run(database_costs(Path(folder, "database"))) if missing is None else None
    host = f"{platform.machine()}, {psutil.cpu_count()} cores"
    costs = UnitCosts(host=host, date=str(datetime.date.today()), engine=engine, api=api, database=database)
    print(msgspec.json.format(msgspec.json.encode(costs), indent=1).decode())
    if missing is not None:
        print(f"no figures of PostgreSQL: {missing}")
    if options.out:
        write(costs, options.out)


def _settings(folder: Path, reference: str) -> Settings:
    """A reference of the user's data directory; the demo model in a directory of its own."""
    if reference != "demo":
        return Settings(threads=1)
    settings = Settings(data_dir=folder, threads=1, kv_cache_bytes=KV_BYTES, kv_offload_bytes=0)
    publish_demo(Repository(settings.data_dir), WEIGHTS)
    return settings


if __name__ == "__main__":
    main()
