"""This command trains the demo model: `python -m recipe.train --preset gpu|cpu --out DIR`.

Worker processes make the corpus during training; every row is seen once. Work is counted in rows, so the same preset
and seed give the same schedule on a fast and on a slow machine, whole or in pieces. A run may be killed at any time:
`--resume` goes on from the state that it saved last. `--minutes N` ends this command, not the run, after N minutes.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from tokenizers import Tokenizer

from recipe import state
from recipe.checkpoint import save_checkpoint
from recipe.corpus import sample
from recipe.encoding import Row
from recipe.feed import Source, chunks
from recipe.muon import Muon
from recipe.network import Llama
from recipe.presets import PRESETS, Preset
from recipe.replicas import Replicas, bf16_is_fast
from recipe.state import Place
from recipe.tokenizer import save_tokenizer, train_tokenizer
from recipe.transplant import transplant

WARMUP = 0.01  # share of the run
TOKENIZER_ROWS = 6000
SAVE_SECONDS = 180.0
REPORT_STEPS = 25


def rate(progress: float, decay: float) -> float:
    """Share of the peak learning rate: warm-up, plateau, a linear decay to 1 % over the last `decay` of the run."""
    if progress < WARMUP:
        return max(progress, WARMUP / 10) / WARMUP
    return min(1.0, max(0.01, (1 - progress) / decay))


def optimizers(
    model: Llama, lr: float, threads: ThreadPoolExecutor, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, its steps in `dtype`; AdamW for the embedding and the norms."""
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    chosen = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    adam: torch.optim.Optimizer = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    return [adam, Muon(hidden, lr, threads, dtype)]


class Run:
    """A run of a preset: the network, its optimizers and the place; owns them all."""

    def __init__(
        self, preset: Preset, out: Path, seed: int, device: str, staged: bool = True, compiled: bool = False
    ) -> None:
        torch.manual_seed(seed)
        self.preset, self.out, self.place = preset, out, Place()
        number = max(1, preset.dialogues // preset.chunk)
        self.source = Source(out / "tokenizer.json", seed, preset.chunk, number, preset.batch_tokens, staged)
        threads = ThreadPoolExecutor(preset.threads, initializer=torch.set_num_threads, initargs=(1,))
        self.model = Llama(preset.shape).to(device)
        dtype = torch.bfloat16 if bf16_is_fast(device) else torch.float32
        self.tools = optimizers(self.model, preset.lr, threads, dtype)
        self.replicas = Replicas(self.model, preset.replicas, threads, device, compiled)

    def resume(self) -> None:
        """Go on from the state in `out`."""
        self.place = state.load(self.out, self.model, self.tools)

    def save(self) -> None:
        """Keep the state, and a checkpoint that can be served."""
        state.save(self.out, self.model, self.tools, self.place)
        save_checkpoint(self.model, self.out)

    def train(self, workers: int, minutes: float | None) -> bool:
        """Train to the end, or for about `minutes`; returns whether the run is complete."""
        clock = Clock(self.place)
        for work in self._steps(workers):
            self._step(work, clock)
            if minutes is not None and clock.seconds > minutes * 60:
                break
            if clock.save_is_due():
                self.save()
        else:
            self.place.chunk, self.place.used = self.source.chunks, 0
        self.save()
        return self.place.chunk >= self.source.chunks

    def _step(self, work: list[list[Row]], clock: "Clock") -> None:
        for tool in self.tools:
            for group in tool.param_groups:
                group["lr"] = self.preset.lr * rate(self.place.chunk / self.source.chunks, self.preset.decay)
        loss, tokens = self.replicas.gradient(work)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for tool in self.tools:
            tool.step()
        self.place.tokens += tokens
        self.place.steps += 1
        clock.report(loss, self.place.chunk / self.source.chunks)

    def _steps(self, workers: int) -> Iterator[list[list[Row]]]:
        """The batches of each step, from the place on; the place moves with them. Batches that fill no step are left
        out at the end of the run."""
        work: list[list[Row]] = []
        skip = self.place.used
        for number, made in chunks(self.source, self.place.chunk, workers):
            for at, rows in enumerate(made[skip:], skip):
                work.append(rows)
                if len(work) == self.preset.replicas:
                    self.place.chunk, self.place.used = number, at + 1
                    yield work
                    work = []
            skip = 0


class Clock:
    """Says how a run proceeds, and when it is to be saved."""

    def __init__(self, place: Place) -> None:
        self.place, self.before = place, place.seconds
        self.began = self.saved = time.monotonic()
        self.first, self.losses = place.tokens, list[float]()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def save_is_due(self) -> bool:
        due = time.monotonic() - self.saved > SAVE_SECONDS
        self.saved = time.monotonic() if due else self.saved
        return due

    def report(self, loss: float, share: float) -> None:
        """One line every 25 steps."""
        self.place.seconds = self.before + self.seconds
        self.losses.append(loss)
        if self.place.steps % REPORT_STEPS:
            return
        speed = (self.place.tokens - self.first) / self.seconds
        mean = sum(self.losses) / len(self.losses)
        self.losses.clear()
        left = self.place.seconds * (1 - share) / max(share, 1e-9) / 60
        print(
            f"step {self.place.steps} loss {mean:.4f} {share:.2%} of the run, "
            f"{self.place.tokens / 1e6:.2f}M positions, {speed:.0f} a second, {left:.0f} min left",
            flush=True,
        )


def main(
    out: Annotated[Path, typer.Option(help="folder of the checkpoint and of the state of the run")],
    preset: Annotated[str, typer.Option(help=f"recipe: {' or '.join(PRESETS)}")] = "cpu",
    minutes: Annotated[float | None, typer.Option(help="end this command after so many minutes; resume later")] = None,
    resume: Annotated[bool, typer.Option(help="go on from the state in --out; begin where there is none")] = False,
    dialogues: Annotated[int | None, typer.Option(help="rows of the whole run instead of the preset's")] = None,
    keep_tokenizer: Annotated[bool, typer.Option(help="take the tokenizer of --init; else one is trained")] = False,
    lr: Annotated[float | None, typer.Option(help="peak learning rate instead of the preset's")] = None,
    init: Annotated[Path | None, typer.Option(help="trained checkpoint of the same sizes to begin from")] = None,
    seed: Annotated[int, typer.Option(help="another seed gives another corpus and another start")] = 7,
    workers: Annotated[int, typer.Option(help="processes that make the corpus; 0 makes it here")] = 1,
    device: Annotated[str, typer.Option(help="cuda or cpu; by default a GPU if there is one")] = "",
) -> None:
    """Train the demo model."""
    if preset not in PRESETS:
        sys.exit(f"there is no preset {preset}: choose {' or '.join(PRESETS)}")
    if keep_tokenizer and init is None:
        sys.exit("--keep-tokenizer takes the tokenizer of a checkpoint: name it with --init DIR")
    chosen = PRESETS[preset]
    chosen = replace(chosen, dialogues=dialogues or chosen.dialogues, lr=lr or chosen.lr)
    out.mkdir(parents=True, exist_ok=True)
    if not (resume and (out / "tokenizer.json").exists()):
        kept = Tokenizer.from_file(str(init / "tokenizer.json")) if init and keep_tokenizer else None
        save_tokenizer(kept or train_tokenizer(sample(TOKENIZER_ROWS)), out)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    compiled = device == "cpu" and bf16_is_fast(device) and shutil.which("g++") is not None
    run = Run(chosen, out, seed, device, staged=init is None, compiled=compiled)
    if resume and any((out / name).exists() for name in (state.STATE, f"{state.STATE}.old")):
        run.resume()
    elif init is not None:
        transplant(run.model, Tokenizer.from_file(str(out / "tokenizer.json")), init)
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    print(f"{preset}: {parameters:,} parameters, {run.source.chunks} chunks of {chosen.chunk} rows", flush=True)
    complete = run.train(workers, minutes)
    print("the run is complete" if complete else "the run is not complete: go on with --resume", flush=True)


if __name__ == "__main__":
    typer.run(main)
