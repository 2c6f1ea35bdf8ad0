"""This test measures what drafts by n-gram are worth on real text: tokens a second with them over those without.

    python -m loadtest.lookup [--model smollm2] [--rounds 5] [--sampled] [1 2 4 8]

The catalogue's model answers in int8. Its questions are made of text that others wrote and every machine has, Python's
own library: functions to explain, functions to rewrite, docstrings to sum up. Questions without a text come beside
them. Two schedulers over one model, one of them without drafts, answer the same questions in turns. Answers must be the
same. The interval is that of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from functools import partial
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Final

import msgspec

from loadtest.answers import QUESTIONS
from loadtest.bench.cache import CACHE, Cache
from loadtest.bench.real import shape_or_exit
from loadtest.drafts import compare
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.runner.loading.building import build_runner
from service.settings import Settings
from service.text.messages import Message
from service.text.tokenizer import Tokenizer

NEW: Final = 200
MODULES: Final = ("argparse", "asyncio.base_events", "difflib", "email.message", "shutil", "statistics")
ASKED: Final = {
    "explain": "Explain what this function does, step by step.",
    "rewrite": "Rewrite this function with better names. Answer with the whole function.",
    "sum up": "Summarise this text in a few sentences.",
}


def texts() -> dict[str, list[str]]:
    """Returns questions by kind, in an order of their own."""
    functions, docstrings = [], []
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            body = dedent(ast.get_source_segment(source, node) or "")
            if isinstance(node, ast.FunctionDef) and 300 < len(body) < 1_500:
                functions.append(body)
            if len(text := ast.get_docstring(node) or "") > 300:
                docstrings.append(text[:1_500])
    given = {"explain": functions[::2], "rewrite": functions[1::2], "sum up": docstrings}
    kinds = {kind: [f"{ASKED[kind]}\n\n{text}" for text in given[kind]] for kind in ASKED}
    kinds["chat"] = list(QUESTIONS)
    for questions in kinds.values():
        Random(1).shuffle(questions)
    return kinds


def cores_of(data_dir: Path, reference: str) -> tuple[EngineCore, EngineCore, Tokenizer]:
    """Returns cores without and with drafts over one model, and its tokenizer. Only one may have work at a time."""
    repository = Repository(data_dir)
    manifest = repository.resolve(reference)
    config = engine_config(Settings(data_dir=data_dir, prefix_caching=False), repository, manifest)
    runner, info = build_runner(config, lambda phase, fraction: None)
    plain = msgspec.structs.replace(config, speculation=False)
    cores = [build_core(each, runner, info.blocks_total) for each in (plain, config)]
    return cores[0], cores[1], Tokenizer.load(repository.path(manifest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("at_once", nargs="*", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sampled", action="store_true", help="temperature 0.7 and top-p 0.9 instead of greedy")
    parser.add_argument("--cache", type=Path, default=CACHE)
    asked = parser.parse_args()
    cache = Cache(asked.cache.expanduser())
    shape = shape_or_exit(cache, asked.model)
    cache.prepare_precision(shape, "int8")
    plain, drafting, tokenizer = cores_of(cache.repository, cache.version_of(shape, "int8"))
    print("kind      at once  without     with  ratio   interval      drafts  right")
    for kind, questions in texts().items():
        prompts = [tokenizer.render_chat([Message("user", question)]) for question in questions]
        for at_once in asked.at_once:
            drawn = partial(_round, prompts, at_once)
            row = compare(plain, drafting, drawn, asked.rounds, asked.sampled, NEW)
            print(f"{kind:8} {at_once:8} {row}", flush=True)


def _round(prompts: list[list[int]], at_once: int, number: int) -> list[list[int]]:
    """Returns the prompts of a round; after the last one the first comes again."""
    return [prompts[(number * at_once + each) % len(prompts)] for each in range(at_once)]


if __name__ == "__main__":
    main()
