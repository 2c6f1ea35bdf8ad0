"""This command has a checkpoint answer held-out dialogues, as real conversations through our own engine, and counts.

`python -m recipe.dialogues FILE [--weights DIR]` publishes the checkpoint in a temporary repository, in
bf16 and int8, as a fresh installation does. The model's own answers stand in the history; decoding is greedy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from models.imports.starter import WEIGHTS, publish_demo
from recipe.held_out.dialogues import HeldOut, read
from recipe.held_out.results import Answered, answered, markdown, table, transcript
from service.engine.process.core import EngineCore
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.offline import load, run_all
from service.settings import Settings
from service.storage.records import open_repository
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

NEW_TOKENS = 96


def converse(core: EngineCore, tokenizer: Tokenizer, dialogues: Sequence[HeldOut]) -> list[list[str]]:
    """The answers of each dialogue, turn by turn; dialogues run side by side."""
    texts: list[list[str]] = [[] for _ in dialogues]
    for turn in range(max((len(each.turns) for each in dialogues), default=0)):
        running = [at for at, each in enumerate(dialogues) if len(each.turns) > turn]
        prompts = [_prompt(tokenizer, dialogues[at], texts[at]) for at in running]
        for at, text in zip(running, _answers(core, tokenizer, prompts), strict=True):
            texts[at].append(text)
    return texts


def _answers(core: EngineCore, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]) -> list[str]:
    params = SamplingParams(max_tokens=NEW_TOKENS, stop_token_ids=tokenizer.stop_token_ids)
    made = run_all(core, [Request(str(at), tuple(ids), params, arrival=at) for at, ids in enumerate(prompts)])
    return [tokenizer.decode([id for output in outputs for id in output.token_ids]) for outputs in made.values()]


def _prompt(tokenizer: Tokenizer, dialogue: HeldOut, texts: Sequence[str]) -> list[int]:
    """The token ids of the chat up to the answer that comes after `texts`."""
    messages = [Message("system", dialogue.system)] if dialogue.system else []
    for turn, text in zip(dialogue.turns, texts, strict=False):
        messages += [Message("user", turn.user), Message("assistant", text)]
    messages.append(Message("user", dialogue.turns[len(texts)].user))
    documents = [Document(each.text, each.title) for each in dialogue.documents or []]
    return tokenizer.render_chat(messages, documents=documents)


def measured(weights: Path, dialogues: Sequence[HeldOut], int8: bool) -> dict[str, list[Answered]]:
    """The answers of the checkpoint in bf16 and, with `int8`, of the version that is made from it."""
    found: dict[str, list[Answered]] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        repository = open_repository(settings)
        for manifest in publish_demo(repository, weights)[: 2 if int8 else 1]:
            core = load(settings, repository, manifest).core()
            texts = converse(core, Tokenizer.load(repository.path(manifest)), dialogues)
            found[manifest.precision] = answered(dialogues, texts)
    return found


def main(
    files: Annotated[list[Path], typer.Argument(help="JSON Lines of dialogues.")],
    weights: Annotated[Path, typer.Option(help="Checkpoint of a demo model.")] = WEIGHTS,
    int8: Annotated[bool, typer.Option(help="Also the int8 version.")] = True,
    show: Annotated[int, typer.Option(help="Dialogues to print, spread over the file.")] = 0,
    wrong: Annotated[int, typer.Option(help="Wrong answers to print.")] = 0,
    keep: Annotated[Path | None, typer.Option(help="File for every answer, as JSON Lines.")] = None,
) -> None:
    """Answer held-out dialogues and print what was right, as Markdown."""
    console = Console(soft_wrap=True, markup=False, highlight=False)
    dialogues = [each for path in files for each in read(path)]
    versions = measured(weights, dialogues, int8)
    console.print(markdown({name: table(answers) for name, answers in versions.items()}))
    first = next(iter(versions.values()))
    _print_dialogues(console, first, show)
    for each in [one for one in first if one.asks and not one.is_right][:wrong]:
        console.print(f"{each.dialogue.id} {each.asks.kind if each.asks else ''} | {each.question} | {each.text}")
    if keep is not None:
        lines = [_line(name, each) for name, answers in versions.items() for each in answers]
        keep.write_bytes(b"\n".join(lines) + b"\n")


def _print_dialogues(console: Console, answers: Sequence[Answered], count: int) -> None:
    made = [list(group) for _, group in groupby(answers, key=lambda each: each.dialogue.id)]
    for group in made[:: max(1, len(made) // count)][:count] if count else []:
        console.print("\n" + transcript(group))


def _line(version: str, each: Answered) -> bytes:
    verdict = each.is_right if each.asks else None
    fields = {"version": version, "id": each.dialogue.id, "turn": each.turn, "user": each.question}
    return msgspec.json.encode({**fields, "answer": each.text, "right": verdict})


if __name__ == "__main__":
    typer.run(main)
