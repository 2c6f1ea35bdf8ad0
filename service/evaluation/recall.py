"""This module prints the demo model's recall table through our own engine, one column a version. Offline: no server, no
socket.

The cases are the demo's (`models.demo.recall`); the engine is the one that serves, so versions are measured as served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from models.demo.recall import RecallCase, Row, cases, table
from models.manifest import Manifest
from models.repository.repository import Repository
from service.engine.process.core import EngineCore
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.offline import load, run_all
from service.settings import Settings
from service.storage.records import open_repository
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

SEED = 1
NEW_TOKENS = 40


def print_table(settings: Settings, references: Sequence[str], questions: int, console: Console) -> None:
    """Answers `questions` cases in each cell with every version, greedily, and prints the recalled share."""
    repository = open_repository(settings)
    drawn = cases(SEED, per_cell=questions)
    columns = {}
    with Progress(console=console, transient=True) as progress:
        for reference in references:
            manifest = repository.resolve(reference)
            columns[f"{manifest.reference} {manifest.precision}"] = _rows(
                settings, repository, manifest, drawn, progress
            )
    console.print(_rendered(columns))
    console.print(f"{len(drawn)} questions a version, values that training never saw", highlight=False)


def _rows(
    settings: Settings, repository: Repository, manifest: Manifest, drawn: list[RecallCase], progress: Progress
) -> list[Row]:
    directory = repository.path(manifest)
    core = load(settings, repository, manifest).core()
    task = progress.add_task(manifest.reference, total=len(drawn))
    return rows(core, Tokenizer.load(directory), drawn, lambda: progress.update(task, advance=1))


def rows(
    core: EngineCore, tokenizer: Tokenizer, drawn: Sequence[RecallCase], on_end: Callable[[], object] = lambda: None
) -> list[Row]:
    """Returns the table of one version, whose engine answers greedily."""

    def answer(drawn: Sequence[RecallCase]) -> list[str]:
        return answers(core, tokenizer, [tuple(prompt_of(tokenizer, case)) for case in drawn], NEW_TOKENS, on_end)

    return table(drawn, answer)


def answers(
    core: EngineCore,
    tokenizer: Tokenizer,
    prompts: Sequence[tuple[int, ...]],
    most: int,
    on_end: Callable[[], object] = lambda: None,
) -> list[str]:
    """Returns the greedy answers, of `most` tokens at most; calls `on_end` as each ends."""
    params = SamplingParams(max_tokens=most, stop_token_ids=tokenizer.stop_token_ids)
    requests = (Request(str(at), token_ids, params, arrival=at) for at, token_ids in enumerate(prompts))
    made = run_all(core, requests, on_end)
    return [tokenizer.decode([id for output in outputs for id in output.token_ids]) for outputs in made.values()]


def prompt_of(tokenizer: Tokenizer, case: RecallCase) -> list[int]:
    """Returns the tokens of the chat that ends with the case's question."""
    messages = [Message(each["role"], each["content"]) for each in case.messages]
    documents = [Document(each["text"], each.get("title")) for each in case.documents]
    return tokenizer.render_chat(messages, documents=documents)


def _rendered(columns: dict[str, list[Row]]) -> Table:
    view = Table("cell", "wording", *(Column(each, overflow="fold") for each in columns))
    for cells in zip(*columns.values(), strict=True):
        shares = (f"{row.share:.1%} ({row.right}/{row.questions})" for row in cells)
        view.add_row(cells[0].cell, cells[0].wording, *shares)
    return view
