"""Quality says how far a system's predictions of a text are from those of the same weights in fp32.

The text is this project's own prose. Every position is predicted from the true tokens before it, in windows of WINDOW
tokens, so a difference is the position's own and no sum of earlier ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from loadtest.bench.running import Driven, Failed, Running
from loadtest.bench.works import Figures
from loadtest.checkpoints import Shape

TEXT: Final = Path(__file__).parent.parent / "texts" / "prose.txt"
WINDOW: Final = 512
LEAST: Final = 32
"""Tokens of a window; a shorter rest of the text is left out."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The windows' token ids, and the folder with the logits of each in fp32."""

    texts: Sequence[Sequence[int]]
    folder: Path

    @classmethod
    async def of(cls, tokenizer: Path, folder: Path, start: Callable[[], Awaitable[Driven]]) -> Reference:
        """Reads the text by `tokenizer`. Where `folder` lacks the logits, the system that `start` gives writes them."""
        texts = windows(tokenizer)
        whole = folder / hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12]
        if not whole.exists():
            running = await start()
            with _beside(whole) as part:
                try:
                    await running.predict(texts, part)
                finally:
                    await running.end()
        return cls(texts, whole)


@contextmanager
def _beside(whole: Path) -> Iterator[Path]:
    """Gives a new folder, which becomes `whole` at the end."""
    part = whole.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    part.rename(whole)


def windows(tokenizer: Path) -> list[list[int]]:
    """Returns the text's token ids in windows."""
    text = TEXT.read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids
    parts = [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]
    return [part for part in parts if len(part) >= LEAST]


def quality(reference: Reference) -> Callable[[Running, Shape, Random], Awaitable[Figures]]:
    """The work that compares a system with `reference`. It must be a system's last one (see `Predicting`)."""

    async def run(running: Running, shape: Shape, draw: Random) -> Figures:
        if not isinstance(running, Driven):
            raise Failed("a server tells no logits of prompts")
        with TemporaryDirectory(dir=reference.folder.parent) as folder:
            await running.predict(reference.texts, Path(folder))
            return figures(reference, Path(folder))

    return run


def figures(reference: Reference, folder: Path) -> Figures:
    """Compares the logits in `folder` with the reference's."""
    found = [
        distances(_read(reference.folder, number, ids), _read(folder, number, ids), ids)
        for number, ids in enumerate(reference.texts)
    ]
    change, same, kl = (torch.cat([each[at] for each in found]) for at in range(3))
    return {
        "kl": float(kl.mean()),
        "kl_error": float(kl.std()) / math.sqrt(len(kl)),
        "logprob_change": float(change.abs().mean()),
        "top_1": float(same.mean()),
        "perplexity_change": math.exp(-float(change.mean())) - 1,
        "positions": float(len(kl)),
    }


def distances(reference: Tensor, found: Tensor, token_ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each position what is added to ln p of the true token, whether the likeliest token is the same, and
    the KL divergence in nats. Both tensors are logits [positions, vocabulary]."""
    theirs, ours = (torch.log_softmax(each.double(), dim=-1) for each in (reference, found))
    targets = torch.tensor(token_ids[1:])[:, None]
    change = (ours - theirs).gather(1, targets)[:, 0]
    same = (ours.argmax(dim=-1) == theirs.argmax(dim=-1)).double()
    return change, same, (theirs.exp() * (theirs - ours)).sum(dim=-1)


def _read(folder: Path, number: int, token_ids: Sequence[int]) -> Tensor:
    rows = torch.frombuffer(bytearray((folder / f"{number}.f32").read_bytes()), dtype=torch.float32)
    return rows.view(len(token_ids) - 1, -1)
