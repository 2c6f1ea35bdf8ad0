"""This test runs many streams for minutes and reports errors, memory of every process, TTFT and ITL on both sides.

    python -m loadtest.soak --streams 64 --seconds 120          against a server that `make serve` started

Exit status 1 when an answer failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from statistics import fmean

import aiohttp
import psutil
import uvloop

from loadtest.wire import Answer, Connection, Spread

TOPICS = ("불고기 도시락", "kimchi rice box", "비건 도시락", "egg roll lunch", "매운 제육 도시락")
MIB = 1024 * 1024


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    return parser.parse_args()


def question(draw: random.Random, max_new_tokens: int) -> dict[str, object]:
    name = draw.choice("가나다라마바사") + "은"
    text = f"{draw.choice(TOPICS)} {draw.randint(1, 9)}개 주세요. 이름은 {name}이에요. 얼마예요?"
    parameters = {
        "max_new_tokens": max_new_tokens,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": draw.randint(0, 2**31),
    }
    return {"messages": [{"role": "user", "content": text}], "parameters": parameters}


async def server_means(session: aiohttp.ClientSession, url: str) -> dict[str, tuple[float, float]]:
    """(sum, count) of the server's TTFT and ITL histograms, over all models."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    found = {}
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
        parts = [
            sum(float(value) for value in re.findall(rf"^dosirak_{name}_{part}{{.*?}} (\S+)$", text, re.MULTILINE))
            for part in ("sum", "count")
        ]
        found[name] = (parts[0], parts[1])
    return found


def resident() -> dict[int, tuple[str, float]]:
    """pid → (what it is, MiB resident) of every process of the service on this machine."""
    found = {}
    for process in psutil.process_iter(["pid", "cmdline", "memory_info"]):
        command = " ".join(process.info["cmdline"] or ())
        if "service.engine.process.worker" in command:
            found[process.info["pid"]] = ("engine", process.info["memory_info"].rss / MIB)
        elif "_bentoml_impl" in command and "worker" in command:
            found[process.info["pid"]] = ("api", process.info["memory_info"].rss / MIB)
    return found


async def one_user(user: Connection, options: argparse.Namespace, seed: int, until: float) -> list[Answer]:
    draw = random.Random(seed)
    answers = []
    while time.perf_counter() < until:
        answers.append(await user.ask(question(draw, options.max_new_tokens)))
    return answers


async def run_users(users: list[Connection], options: argparse.Namespace, seconds: float) -> list[Answer]:
    until = time.perf_counter() + seconds
    runs = [one_user(user, options, seed, until) for seed, user in enumerate(users)]
    return [answer for answers in await asyncio.gather(*runs) for answer in answers]


def report(answers: list[Answer], seconds: float) -> bool:
    good = [answer for answer in answers if not answer.error]
    tokens = sum(answer.completion_tokens for answer in good)
    print(f"answers {len(answers)}, failed {len(answers) - len(good)}, {tokens / seconds:.0f} tokens/s")
    for name, values in (("TTFT", [a.ttft for a in good]), ("ITL", [gap for a in good for gap in a.gaps])):
        spread = Spread.of(values)
        print(
            f"{name:5} mean {spread.mean:7.1f}  p50 {spread.p50:7.1f}  p95 {spread.p95:7.1f}  p99 {spread.p99:7.1f} ms"
        )
    for answer in answers:
        if answer.error:
            print("failed:", answer.error)
            break
    return len(good) == len(answers)


async def main() -> int:
    options = arguments()
    users = [Connection(options.url) for _ in range(options.streams)]
    async with aiohttp.ClientSession() as session:
        await run_users(users, options, min(10.0, options.seconds / 4))  # warm: the caches and allocators fill
        memory, before = resident(), await server_means(session, options.url)
        started = time.perf_counter()
        answers = await run_users(users, options, options.seconds)
        whole = report(answers, time.perf_counter() - started)
        after = await server_means(session, options.url)
    good = [answer for answer in answers if not answer.error]
    ours = {
        "time_to_first_token_seconds": fmean([a.ttft for a in good]),
        "inter_token_latency_seconds": fmean([gap for a in good for gap in a.gaps]),
    }
    for name, mean in ours.items():
        theirs = (after[name][0] - before[name][0]) / (after[name][1] - before[name][1])
        print(f"{name}: server {theirs * 1e3:.2f} ms, client {mean * 1e3:.2f} ms, server/client {theirs / mean:.3f}")
    for pid, (what, now) in resident().items():
        print(f"{what} {pid}: {memory.get(pid, (what, now))[1]:.0f} → {now:.0f} MiB resident")
    return 0 if whole else 1


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
