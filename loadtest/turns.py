"""This test compares the twentieth turn of a long chat with the same message in a fresh chat: computed tokens and TTFT.

It measures with the chat's blocks in memory, and after other chats have evicted them.

    DOSIRAK_KV_CACHE_BYTES=… make serve              room for two chats or so
    python -m loadtest.turns

The client sends the whole chat at every turn. Long and fresh chats alternate, so other load affects both. Each last
turn is sent once more without its cached blocks. Exit status 1 if that answer differs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import httpx

QUESTIONS: Final = (
    "불고기 도시락 두 개 주세요.",
    "What is in the kimchi box?",
    "배달은 얼마나 걸려요?",
    "Thank you, one more.",
)
GOAL: Final = 1.3
RESTORED: Final = "dosirak_kv_restored_tokens_total"
Chat = list[dict[str, str]]
Times = dict[str, list[float]]


def _times() -> Times:
    return {"fresh": [], "last": []}


@dataclass(slots=True)
class Seen:
    """Of one state of the blocks: ms by pair, of TTFT and of prefill, the engine's part of it; of the last turns,
    how many tokens were sent, were cached, and of these came from disk."""

    ttft: Times = field(default_factory=_times)
    prefill: Times = field(default_factory=_times)
    sent: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    wrong: int = 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1500, help="of the chat at its last turn, or a few less")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--others", type=int, default=6, help="chats that press the first one's blocks out")
    return parser.parse_args()


def ask(client: httpx.Client, chat: Chat, tokens: int = 4, **parameters: Any) -> dict[str, Any]:
    body = {"messages": chat, "parameters": {"max_new_tokens": tokens, "ignore_eos": True, **parameters}}
    return dict(client.post("/generate", json=body).raise_for_status().json())


def begin(name: str) -> Chat:
    """Returns a beginning that is unique from the first token on."""
    return [{"role": "system", "content": f"{time.time_ns()} {name}"}]


def question(turn: int, times: int = 1) -> dict[str, str]:
    words = " ".join(f"{QUESTIONS[(turn + at) % len(QUESTIONS)]} {turn}" for at in range(times))
    return {"role": "user", "content": words}


def talk(client: httpx.Client, name: str, options: argparse.Namespace) -> Chat:
    """Runs all turns but the last. The questions' length gives the wanted number of tokens."""
    chat, each = begin(name), options.tokens // options.turns
    for turn in range(options.turns - 1):
        times = 1
        while count(client, [*chat, question(turn, times)]) < each * (turn + 1):
            times += 1
        chat.append(question(turn, times))
        chat.append({"role": "assistant", "content": ask(client, chat, tokens=16)["generated_text"]})
    return chat


def count(client: httpx.Client, chat: Chat) -> int:
    return int(client.post("/tokenize", json={"messages": chat}).raise_for_status().json()["count"])


def restored(client: httpx.Client) -> float:
    lines = client.get("/metrics").raise_for_status().text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(RESTORED))


def pair(client: httpx.Client, seen: Seen, chat: Chat, first: bool) -> None:
    """The chat's next turn, `first` or after the same message in a fresh chat."""
    turns = {"last": chat, "fresh": [*begin("fresh"), chat[-1]]}
    for name in ("last", "fresh") if first else ("fresh", "last"):
        before = restored(client)
        answer = ask(client, turns[name])
        seen.ttft[name].append(answer["timings"]["ttft_ms"])
        seen.prefill[name].append(answer["timings"]["prefill_ms"])
        if name == "last":
            seen.sent.append(answer["usage"]["prompt_tokens"])
            seen.cached.append(answer["usage"]["cached_tokens"])
            seen.restored.append(restored(client) - before)
            text = answer["generated_text"]
    cold = ask(client, chat, details=True, decoder_input_details=True)
    seen.wrong += cold["generated_text"] != text or cold["usage"]["cached_tokens"] > 0


def table(found: dict[str, Seen]) -> str:
    lines = [
        "| blocks | tokens | cached | from disk | TTFT fresh, ms | last turn, ms | ratio | of it prefill fresh, ms | "
        "last turn, ms | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, seen in found.items():
        cells = [f"{median(each):,.0f}" for each in (seen.sent, seen.cached, seen.restored)]
        for times in (seen.ttft, seen.prefill):
            cells += [*(f"{median(times[which]):.1f}" for which in ("fresh", "last")), f"{ratio(times):.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ratio(times: Times) -> float:
    """The median of the pairs'."""
    return median(last / fresh for last, fresh in zip(times["last"], times["fresh"], strict=True))


def main() -> int:
    options = arguments()
    memory, pressed = Seen(), Seen()
    with httpx.Client(base_url=options.url, timeout=120) as client:
        for number in range(options.pairs):
            chat = talk(client, f"chat {number}", options)
            pair(client, memory, [*chat, question(options.turns)], first=number % 2 == 0)
            for other in range(options.others):
                ask(client, [*begin(f"other {other}"), *chat[1:], question(0)], tokens=1)
            pair(client, pressed, [*chat, question(options.turns + 1)], first=number % 2 == 0)
    print(table({"in memory": memory, f"after {options.others} other chats": pressed}), end="")
    print(f"goal: TTFT at most {GOAL} with blocks in memory; {'reached' if ratio(memory.ttft) <= GOAL else 'missed'}")
    wrong = memory.wrong + pressed.wrong
    print(f"{wrong} of {2 * options.pairs} last turns answer otherwise than without cached blocks")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
