"""This test measures the API process's cost of a turn of a stored session, by the session's number of messages:

    python -m loadtest.session_turns [--messages 100 1000 10000] [--turns 30]

The whole API runs in this process with the demo model's tokenizer and template. A scripted engine costs almost nothing,
so the process's CPU time is the API's. The sessions alternate, so other load affects all of them. The test prints the
CPU time of a turn, the time of a page of messages, and the size of the export, which it imports again. Exit status 1 if
a turn of the longest session costs more than GOAL times a turn of the shortest one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from models.imports.starter import WEIGHTS
from models.repository.repository import Repository
from service.observability.logs import configure_logging
from service.settings import Settings
from tests.fake_service import INFO, World, serving
from tests.versions import FACTS, write_weights

GOAL: Final = 2.0
SESSIONS: Final = "/v1/sessions"
QUESTION: Final = "내일 점심에 불고기 도시락 두 개를 땅콩 없이 배달해 주시면 얼마예요? And one salad, please."
ANSWER: Final = "네, 불고기 도시락 두 개와 샐러드 하나는 모두 이만오천 원이고, 내일 열두 시까지 배달해 드릴게요. " * 2
ENGINE: Final = {"info": msgspec.structs.replace(INFO, blocks_total=256)}  # room for the window
FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def publish(directory: Path) -> None:
    """Publishes a version with the demo model's tokenizer and almost no weights."""
    repository = Repository(directory)
    with repository.stage() as staged:
        for name in FILES:
            shutil.copy(WEIGHTS / name, staged / name)
        (staged / "config.json").write_text("{}")
        write_weights(staged, "nothing")
        repository.publish(staged, replace(FACTS, context_window=2048, vocab_size=3072), "demo")


def lines_of(messages: int) -> bytes:
    """A session as an export has it, without receipts."""
    lines: list[dict[str, Any]] = [{"type": "session", "format": 1}]
    for at in range(messages):
        role, text = ("assistant", ANSWER) if at % 2 else ("user", f"{at}: {QUESTION}")
        line = {"type": "message", "id": f"m_{at}", "role": role, "content": text, "created_at": "2026-01-01T00:00:00Z"}
        lines.append(line)
    return b"\n".join(map(msgspec.json.encode, lines))


async def imported(world: World, lines: bytes) -> str:
    headers = {"Content-Type": "application/x-ndjson"}
    response = await world.client.post(f"{SESSIONS}/import", content=lines, headers=headers)
    response.raise_for_status()
    return str(response.json()["id"])


async def turn(
    world: World, session: str, clock: Callable[[], float] = time.process_time, new_tokens: int = 16
) -> float:
    """Returns the milliseconds of one turn by a clock in seconds: CPU time of this process, if not another one."""
    body = {"session_id": session, "messages": [{"role": "user", "content": QUESTION}]}
    started = clock()
    response = await world.client.post("/generate", json={**body, "parameters": {"max_new_tokens": new_tokens}})
    spent = clock() - started
    response.raise_for_status()
    return spent * 1000


async def page(world: World, session: str) -> float:
    """CPU milliseconds of the newest hundred messages' page, receipts included."""
    cursor, spent = None, 0.0
    while True:
        params = {"limit": "100", **({"cursor": cursor} if cursor else {})}
        started = time.process_time()
        response = await world.client.get(f"{SESSIONS}/{session}/messages", params=params)
        spent = time.process_time() - started
        cursor = response.raise_for_status().json()["next_cursor"]
        if cursor is None:
            return spent * 1000


async def measure(directory: Path, sizes: list[int], turns: int) -> bool:
    settings: dict[str, Any] = {"sessions_max_messages": 100_000}
    async with serving(directory, engine=ENGINE, **settings) as world:
        sessions = {size: await imported(world, lines_of(size)) for size in sizes}
        spent: dict[int, list[float]] = {size: [] for size in sizes}
        firsts = {size: await turn(world, sessions[size]) for size in sizes}
        for _ in range(turns):
            for size, session in sessions.items():
                spent[size].append(await turn(world, session))
        print("| messages | CPU ms of a turn | the first after an import | a page | export, KiB |")
        print("|---:|---:|---:|---:|---:|")
        for size, session in sessions.items():
            exported = (await world.client.get(f"{SESSIONS}/{session}/export")).raise_for_status().content
            paged = await page(world, session)
            await imported(world, exported)
            cells = f"{median(spent[size]):.1f} | {firsts[size]:.0f} | {paged:.0f} | {len(exported) / 1024:,.0f}"
            print(f"| {size:,} | {cells} |", flush=True)
    ratio = median(spent[max(sizes)]) / median(spent[min(sizes)])
    print(f"a turn of {max(sizes):,} messages costs {ratio:.2f} times one of {min(sizes):,}")
    return ratio <= GOAL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    configure_logging(Settings(log_level="error"))
    with tempfile.TemporaryDirectory() as directory:
        publish(Path(directory))
        return 0 if asyncio.run(measure(Path(directory), options.messages, options.turns)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
