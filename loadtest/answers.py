"""This command writes answers.md beside the figures of a run: ten questions with the answers of each precision and of
llama.cpp, unedited, and what each loses against fp32.

    python -m loadtest.answers loadtest/results/2026-11-27-smollm2

The folder has the figures that `python -m loadtest.bench --model smollm2` recorded. Answers are greedy, so the command
gives the same page again.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

from loadtest.bench.cache import CACHE, Cache
from loadtest.bench.journal import Journal
from loadtest.bench.real import prepare, shape_in, systems
from loadtest.bench.real_page import QUALITY
from loadtest.bench.report import host, table
from loadtest.bench.session import commit
from loadtest.bench.systems import System
from loadtest.bench.wave import Asked
from models.repository.repository import Repository
from service.text.messages import Message
from service.text.tokenizer import Tokenizer

NEW_TOKENS: Final = 64
ANSWERING: Final = (
    "dosirak bf16",
    "dosirak int8",
    "dosirak int8-weight",
    "dosirak file",
    "llama.cpp file",
)
FP32: Final = "transformers fp32"
QUESTIONS: Final = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write one sentence about a cat and a piano.",
    "What is 12 plus 30?",
    "Translate to French: Good morning, my friend.",
    "Name three fruits that are red.",
    "How does a plant make its food?",
    "Who wrote Romeo and Juliet?",
    "Give me a short recipe for pancakes.",
    "Write a Python function that returns the larger of two numbers.",
)


async def answers(cache: Cache, system: System, tokenizer: Tokenizer) -> list[str]:
    """Returns the answer to each question, cut where the model ends it; one that is longer ends with "…"."""
    running = await system.start(cache)
    try:
        prompts = [tokenizer.render_chat([Message("user", question)]) for question in QUESTIONS]
        told = await running.wave([Asked(prompt, NEW_TOKENS) for prompt in prompts])
        return [said(tokenizer, answer.token_ids) for answer in told]
    finally:
        await running.end()


def said(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    ends = [at for at, token in enumerate(token_ids) if token in tokenizer.stop_token_ids]
    return tokenizer.decode(token_ids[: ends[0]]) if ends else tokenizer.decode(token_ids) + " …"


def page(journal: Journal, compared: Sequence[System], told: dict[str, list[str]], command: str) -> str:
    """The table of qualities, then each question with the answers; systems with the same answer share a line."""
    machine = host()
    parts = [
        "# What a precision loses",
        f"Written by `{command}` on {date.today().isoformat()}, commit {commit()},\n{machine['cpu']}.\n"
        "The model is SmolLM2-135M-Instruct, the catalogue's `smollm2`, which others trained. Answers are greedy and\n"
        "unedited, of a small model: they are compared with each other, and not with the truth.",
        "## Against fp32\n\nTransformers in fp32 on the dequantized file is the reference\n"
        "([how it is measured](../../../docs/benchmarks.md#speed-and-quality-of-a-real-model)).",
        table(journal, compared, QUALITY),
        f"## Ten questions\n\nUp to {NEW_TOKENS} tokens; an answer that is longer ends with …",
    ]
    for number, question in enumerate(QUESTIONS):
        parts.append(f"### {question}")
        by_text: dict[str, list[str]] = {}
        for name, texts in told.items():
            by_text.setdefault(texts[number], []).append(name)
        parts += [f"**{', '.join(names)}**\n\n{fenced(text)}" for text, names in by_text.items()]
    return "\n\n".join(parts) + "\n"


def fenced(text: str) -> str:
    """As it is, line for line; four backticks, because an answer may hold three."""
    return f"````text\n{text.strip()}\n````"


async def run(cache: Cache, folder: Path, name: str) -> str:
    shape = shape_in(cache, name)
    compared = systems(shape)
    chosen = [system for system in compared if system.name in ANSWERING]
    absent = prepare(cache, chosen)
    repository = Repository(cache.repository)
    tokenizer = Tokenizer.load(repository.path(repository.resolve(cache.version_of(shape, "bf16"))))
    fp32 = System(FP32, "transformers", shape, "fp32", options=("float32", "static"))
    told = {}
    for system in (fp32, *(each for each in chosen if each.name not in absent)):
        told[system.name] = await answers(cache, system, tokenizer)
        print(f"{system.name}: {told[system.name][0]}", flush=True)
    return page(Journal(folder / "figures.jsonl"), compared, told, f"python -m loadtest.answers {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `loadtest.bench --model` wrote")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    text = asyncio.run(run(Cache(options.cache.expanduser()), options.folder, options.model))
    (options.folder / "answers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
