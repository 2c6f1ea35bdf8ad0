"""This command trains the demo model from a seed: `python -m models.demo.train --out DIR`.

The grammar makes the corpus during training; every dialogue is seen once. Work is counted in tokens, so the same
arguments give the same schedule on a fast and on a slow machine. Three courses follow each other. Each starts from the
saved weights of the course before it: recall, trust in the recalled fact, and recall in a full window.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.demo.checkpoint import load_checkpoint, save_checkpoint
from models.demo.encoding import Row, batches
from models.demo.grammar import Style, dialogue
from models.demo.muon import Muon
from models.demo.network import Llama, Shape
from models.demo.replicas import Replicas
from models.demo.tokenizer import save_tokenizer, train_tokenizer

WARMUP = 0.01  # share of a course's tokens


@dataclass(frozen=True, slots=True)
class Course:
    """A learning rate that rises, stays and falls, and the dialogues of the course.

    tokens: its share of the plan's; peak: the rate as a share of the plan's; decay: the share of its tokens over which
    the rate falls; stages: styles and their proportions, each until a share of the tokens; untold: the weight in the
    loss of an answer that says the fact was not told; first: number of its first dialogue.
    """

    tokens: float
    peak: float
    decay: float
    stages: list[tuple[float, list[tuple[float, Style]]]]
    untold: float
    first: int


LONGER, LONGEST = Style((20, 36), 12, 10, 0.1), Style((60, 72), 12, 10, 0.1)
RECALL = Course(
    17 / 29,
    1.0,
    0.30,
    [
        (0.12, [(1.0, Style((2, 4), 1, 1, 0.7))]),
        (0.30, [(1.0, Style((3, 7), 3, 3, 0.5))]),
        (0.55, [(1.0, Style((5, 12), 5, 5, 0.3))]),
        (1.00, [(0.86, Style((6, 16), 8, 6, 0.1)), (0.10, LONGER), (0.04, LONGEST)]),
    ],
    4.0,
    1_000_000,
)
# After the first course Korean, the other language and corrections are weak, and "not told" comes too often.
WEAK = Style((6, 16), 8, 6, 0.1, languages=(0.20, 0.48, 0.32), corrections=0.12)
TRUST = Course(4 / 29, 0.35, 0.80, [(1.0, [(0.86, WEAK), (0.10, LONGER), (0.04, LONGEST)])], 0.8, 50_000_000)
# After both courses long chats are weak: a seventh of the dialogues, mostly corrections.
FULL = Course(8 / 29, 0.25, 0.85, [(1.0, [(0.40, WEAK), (0.20, LONGER), (0.40, LONGEST)])], 0.8, 90_000_000)
COURSES = (RECALL, TRUST, FULL)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does; `tokens` counts padded positions."""

    out: Path
    tokens: int
    batch_tokens: int
    lr: float
    seed: int
    device: str
    replicas: int
    threads: int


def rate(course: Course, progress: float) -> float:
    """Share of the plan's learning rate: warm-up, plateau, then a linear decay to 2 % of the peak."""
    if progress < WARMUP:
        return course.peak * progress / WARMUP
    return course.peak * min(1.0, max(0.02, (1 - progress) / course.decay))


def rows_from(tokenizer: Tokenizer, plan: Plan, course: Course, start: "Progress") -> Iterator[list[Row]]:
    """The batches of a course; its stages follow the tokens of `start`, whose dialogues are counted here."""
    while True:
        share = start.tokens / start.goal
        at = next((at for at, (until, _) in enumerate(course.stages) if share < until), -1)
        styles = course.stages[at][1]
        size = plan.batch_tokens // 2 if styles[0][1].turns[1] < 6 else plan.batch_tokens
        first = plan.seed * 1_000_000_000 + start.dialogues
        start.dialogues += 96
        yield from batches(tokenizer, styles, first, size, course.untold)


@dataclass(slots=True)
class Progress:
    """How far a course is: positions seen and to be seen, the next dialogue, optimizer steps."""

    goal: int
    dialogues: int
    tokens: int = 0
    steps: int = 0


def optimizers(model: Llama, plan: Plan, threads: ThreadPoolExecutor) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    adam: torch.optim.Optimizer = torch.optim.AdamW(rest, lr=plan.lr, betas=(0.9, 0.95), weight_decay=0.01)
    return [adam, Muon(hidden, plan.lr, threads)]


def train(plan: Plan, course: Course, model: Llama, tokenizer: Tokenizer) -> None:
    """Run `course` on `model`, which it mutates; saves to `plan.out` every four minutes and at the end."""
    threads = ThreadPoolExecutor(plan.threads, initializer=torch.set_num_threads, initargs=(1,))
    tools, progress = optimizers(model, plan, threads), Progress(int(plan.tokens * course.tokens), course.first)
    replicas = Replicas(model, plan.replicas, threads, plan.device)
    clock, work = Clock(), rows_from(tokenizer, plan, course, progress)
    while progress.tokens < progress.goal:
        for tool in tools:
            for group in tool.param_groups:
                group["lr"] = plan.lr * rate(course, progress.tokens / progress.goal)
        loss, tokens = replicas.gradient([next(work) for _ in range(plan.replicas)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool in tools:
            tool.step()
        progress.tokens += tokens
        progress.steps += 1
        clock.report(progress, loss)
        if clock.save_is_due():
            save_checkpoint(model, plan.out)
    save_checkpoint(model, plan.out)


class Clock:
    """Says how a run proceeds, and when it is to be saved."""

    def __init__(self) -> None:
        self.began, self.saved, self.losses = time.time(), time.time(), list[float]()

    def save_is_due(self) -> bool:
        due = time.time() - self.saved > 240
        self.saved = time.time() if due else self.saved
        return due

    def report(self, progress: Progress, loss: float) -> None:
        """One line every 25 steps."""
        self.losses.append(loss)
        if progress.steps % 25:
            return
        speed = progress.tokens / (time.time() - self.began)
        left = (progress.goal - progress.tokens) / speed / 60
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
    parser.add_argument("--tokens", type=float, default=29e6, help="positions to train on, padding included")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--replicas", type=int, default=4, help="batches a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", type=int, nargs=4, default=(192, 5, 6, 448))
    parser.add_argument(
        "--first",
        type=int,
        default=1,
        choices=range(1, len(COURSES) + 1),
        help="course to begin with; from the second on with what --out holds",
    )
    args = parser.parse_args()
    plan = Plan(
        args.out,
        int(args.tokens),
        args.batch_tokens,
        args.lr,
        args.seed,
        args.device,
        args.replicas,
        args.threads,
    )
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer(dialogue(number) for number in range(6000))
    plan.out.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, plan.out)
    size, layers, heads, wide = args.shape
    model = Llama(Shape(tokenizer.get_vocab_size(), size, layers, heads, wide)).to(plan.device)
    for course in COURSES[args.first - 1 :]:
        if course is not RECALL:
            load_checkpoint(model, plan.out)
        train(plan, course, model, tokenizer)


if __name__ == "__main__":
    main()
