"""Train the demo model from a seed: `python -m models.demo.train --out DIR`.

The corpus is made while training; every dialogue is seen once. The amount of work is counted in tokens, so that the
same arguments give the same schedule on a fast and on a slow machine.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.demo.checkpoint import save_checkpoint
from models.demo.encoding import Row, batches
from models.demo.grammar import Style, dialogue
from models.demo.muon import Muon
from models.demo.network import Llama, Shape
from models.demo.replicas import Replicas
from models.demo.tokenizer import save_tokenizer, train_tokenizer

STAGES: list[tuple[float, list[tuple[float, Style]]]] = [
    (0.12, [(1.0, Style((2, 4), 1, 1, 0.7))]),
    (0.30, [(1.0, Style((3, 7), 3, 3, 0.5))]),
    (0.55, [(1.0, Style((5, 12), 5, 5, 0.3))]),
    (
        1.00,
        [(0.86, Style((6, 16), 8, 6, 0.1)), (0.10, Style((20, 36), 12, 10, 0.1)), (0.04, Style((60, 72), 12, 10, 0.1))],
    ),
]
WARMUP, DECAY = 0.01, 0.30  # shares of the tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does; `tokens` counts padded positions."""

    out: Path
    tokens: int
    batch_tokens: int
    lr: float
    seed: int
    device: str
    minutes: float
    replicas: int
    threads: int


def rate(progress: float) -> float:
    """Share of the peak learning rate: warm-up, plateau, then a linear decay to 2 %."""
    if progress < WARMUP:
        return progress / WARMUP
    return min(1.0, max(0.02, (1 - progress) / DECAY))


def rows_from(tokenizer: Tokenizer, plan: Plan, start: "Progress") -> Iterator[list[Row]]:
    """The batches of a run; the curriculum follows the tokens of `start`, whose dialogues are counted here."""
    while True:
        share = start.tokens / plan.tokens
        styles = next((styles for until, styles in STAGES if share < until), STAGES[-1][1])
        size = plan.batch_tokens // 2 if share < STAGES[0][0] else plan.batch_tokens
        first = plan.seed * 1_000_000_000 + start.dialogues
        start.dialogues += 96
        yield from batches(tokenizer, styles, first, size)


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    tokens: int = 0
    dialogues: int = 1_000_000
    steps: int = 0


def optimizers(model: Llama, plan: Plan, threads: ThreadPoolExecutor) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    adam: torch.optim.Optimizer = torch.optim.AdamW(rest, lr=plan.lr, betas=(0.9, 0.95), weight_decay=0.01)
    return [adam, Muon(hidden, plan.lr, threads)]


def train(plan: Plan, model: Llama, tokenizer: Tokenizer) -> None:
    """Run `plan` on `model`, which it mutates; saves to `plan.out` every four minutes and at the end."""
    threads = ThreadPoolExecutor(plan.threads, initializer=torch.set_num_threads, initargs=(1,))
    tools, progress = optimizers(model, plan, threads), Progress()
    replicas = Replicas(model, plan.replicas, threads, plan.device)
    clock, work = Clock(), rows_from(tokenizer, plan, progress)
    while True:
        for tool in tools:
            for group in tool.param_groups:
                group["lr"] = plan.lr * rate(progress.tokens / plan.tokens)
        loss, tokens = replicas.gradient([next(work) for _ in range(plan.replicas)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool in tools:
            tool.step()
        progress.tokens += tokens
        progress.steps += 1
        clock.report(progress, plan, loss)
        done = progress.tokens >= plan.tokens or clock.minutes() > plan.minutes
        if done or clock.save_is_due():
            save_checkpoint(model, plan.out)
        if done:
            break


class Clock:
    """Says how a run proceeds, and when it is to be saved."""

    def __init__(self) -> None:
        self.began, self.saved, self.losses = time.time(), time.time(), list[float]()

    def minutes(self) -> float:
        return (time.time() - self.began) / 60

    def save_is_due(self) -> bool:
        due = time.time() - self.saved > 240
        self.saved = time.time() if due else self.saved
        return due

    def report(self, progress: Progress, plan: Plan, loss: float) -> None:
        """One line every 25 steps."""
        self.losses.append(loss)
        if progress.steps % 25:
            return
        speed = progress.tokens / (time.time() - self.began)
        left = (plan.tokens - progress.tokens) / speed / 60
        mean = sum(self.losses) / len(self.losses)
        self.losses.clear()
        tokens = progress.tokens / 1e6
        print(
            f"step {progress.steps} loss {mean:.3f} tokens {tokens:.2f}M {speed:.0f} tok/s ETA {left:.1f} min",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights")
    parser.add_argument("--tokens", type=float, default=17e6, help="positions to train on, padding included")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--replicas", type=int, default=4, help="batches a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", type=int, nargs=4, default=(192, 5, 6, 448))
    args = parser.parse_args()
    plan = Plan(
        args.out,
        int(args.tokens),
        args.batch_tokens,
        args.lr,
        args.seed,
        args.device,
        args.minutes,
        args.replicas,
        args.threads,
    )
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer(dialogue(number) for number in range(6000))
    plan.out.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, plan.out)
    size, layers, heads, wide = args.shape
    model = Llama(Shape(tokenizer.get_vocab_size(), size, layers, heads, wide)).to(plan.device)
    train(plan, model, tokenizer)


if __name__ == "__main__":
    main()
