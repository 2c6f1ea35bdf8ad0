"""This test runs a chat that outgrows its window, and measures the tokens and time of each turn by depth of the cut.

    python -m loadtest.longchat --turns 100          against a server that `make serve` started

The client sends the whole chat at every turn. The test compares each answer's receipt with the preview before it, and
with a recount of its messages by `/tokenize`. Exit status 1 if one differs. It prints a table, and with `--out` writes
it with a plot.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from loadtest.bench.plots import bars

WAYS: Final = {
    "by cost": None,
    "to a quarter": 0.25,
    "to half": 0.5,
    "to three quarters": 0.75,
    "slides": 0.999,
}
QUESTIONS: Final = (
    "불고기 도시락 두 개 주세요.",
    "What is in the kimchi box?",
    "배달은 얼마나 걸려요?",
    "Thank you, one more.",
)
GROUP: Final = 10


@dataclass(slots=True)
class Seen:
    """One way's figures by turn: tokens sent, tokens not in the prefix cache, tokens that the chat grew by, and seconds
    to the answer's first token and to its end; `cuts` are the turns at which the cut moved."""

    sent: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def at_cuts(self) -> int:
        return sum(self.sent[turn] for turn in self.cuts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--words", type=int, default=40, help="of each question, so that the window fills")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, help="folder for longchat.md and longchat.svg")
    return parser.parse_args()


def talk(client: httpx.Client, name: str, low_water: float | None, options: argparse.Namespace) -> Seen:
    """Runs one chat to its end. It has its own system message, so it finds no blocks of another chat."""
    seen, chat = Seen(), [{"role": "system", "content": f"{name} {time.time_ns()}"}]
    before, answered = None, 0
    for turn in range(options.turns):
        words = " ".join(f"{QUESTIONS[(turn + at) % len(QUESTIONS)]} {turn}" for at in range(options.words // 5))
        chat.append({"role": "user", "content": words})
        parameters = {"max_new_tokens": options.max_new_tokens, "ignore_eos": True}
        body = {"messages": chat, "context": {"policy": "window", "low_water": low_water}, "parameters": parameters}
        preview = client.post("/v1/context/preview", json=body).raise_for_status().json()
        answer = client.post("/generate", json=body).raise_for_status().json()
        receipt, usage = answer["context"], answer["usage"]
        seen.wrong += _differences(client, turn, chat, preview["context"], receipt, usage["prompt_tokens"])
        cut = (receipt["cut"] or {}).get("at")
        if cut != before:
            seen.cuts.append(turn)
        before = cut
        seen.sent.append(usage["prompt_tokens"])
        seen.computed.append(usage["prompt_tokens"] - usage["cached_tokens"])
        seen.new.append(receipt["parts"]["current"] + answered)
        seen.ttft.append(answer["timings"]["ttft_ms"] / 1000)
        seen.seconds.append(answer["timings"]["total_ms"] / 1000)
        answered = usage["completion_tokens"]
        chat.append({"role": "assistant", "content": answer["generated_text"]})
    return seen


def _differences(
    client: httpx.Client,
    turn: int,
    chat: list[dict[str, str]],
    preview: dict[str, Any],
    receipt: dict[str, Any],
    sent: int,
) -> list[str]:
    kept = [chat[int(name.removeprefix("m_"))] for name in receipt["kept"]]
    counted = client.post("/tokenize", json={"messages": kept}).raise_for_status().json()["count"]
    numbers = (receipt["used"], sum(receipt["parts"].values()), counted)
    wrong = (
        []
        if set(numbers) == {sent}
        else [f"turn {turn}: {sent} tokens were sent, the receipt and a recount say {numbers}"]
    )
    if preview | {"cached_tokens": receipt["cached_tokens"]} != receipt:
        wrong.append(f"turn {turn}: the preview is another than the receipt")
    return wrong


def table(found: dict[str, Seen]) -> str:
    lines = [
        "| window | sent | new in the chat | computed | cuts | computed / (new + at cuts) | TTFT median, ms | p95 "
        "| a turn, mean ms | tokens sent per ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, seen in found.items():
        computed, new, times = sum(seen.computed), sum(seen.new), sorted(seen.ttft)
        cells = [
            f"{sum(seen.sent):,}",
            f"{new:,}",
            f"{computed:,}",
            str(len(seen.cuts)),
            f"{computed / (new + seen.at_cuts):.2f}",
            f"{times[len(times) // 2] * 1000:.0f}",
            f"{times[int(len(times) * 0.95)] * 1000:.0f}",
            f"{sum(seen.seconds) / len(seen.seconds) * 1000:.0f}",
            f"{sum(seen.sent) / sum(seen.seconds) / 1000:.2f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(found: dict[str, Seen]) -> str:
    turns = len(next(iter(found.values())).computed)
    starts = range(0, turns, GROUP)
    series = {name: [sum(seen.computed[at : at + GROUP]) / GROUP for at in starts] for name, seen in found.items()}
    return bars(
        "Prompt tokens computed a turn", "mean of ten turns", [f"{at + 1}-{at + GROUP}" for at in starts], series
    )


def main() -> int:
    options = arguments()
    with httpx.Client(base_url=options.url, timeout=120) as client:
        found = {
            name: talk(client, name, low_water, options) for name, low_water in WAYS.items() if name in options.ways
        }
    print(table(found), end="")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "longchat.md").write_text(
            f"# A chat of {options.turns} turns\n\n{table(found)}", encoding="utf-8"
        )
        (options.out / "longchat.svg").write_text(plot(found), encoding="utf-8")
    wrong = [each for seen in found.values() for each in seen.wrong]
    print("\n".join(wrong) or f"{len(found) * options.turns} receipts, all as previewed and recounted")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
