"""This module measures what a chat that has outgrown its window still recalls: the demo's facts, by policy and by side
of the cut.

It builds prompts as the service does, and the version itself writes the summaries. Offline: no server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from models.demo.recall import NEAR, RecallCase, holds, is_right, long_cases
from service.context.budget import Budget, ContextOptions
from service.context.composition import SUMMARY_REQUEST
from service.context.policies import Policy
from service.context.prompt import Chat, Prompt, build_prompt
from service.context.sources import Past
from service.engine.process.core import EngineCore
from service.evaluation.offline import load
from service.evaluation.recall import NEW_TOKENS, SEED, answers
from service.settings import Settings
from service.storage.records import open_repository
from service.text.messages import Message
from service.text.tokenizer import Tokenizer

WAYS: Final[tuple[Policy, ...]] = ("window", "middle", "summarise", "retrieve")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case under one policy: whether `window` leaves the fact out, and whether the fact's turn was sent."""

    is_dropped: bool
    is_sent: bool
    is_right: bool


class Recaller:
    """Answers cases with one version's engine. `window` is in tokens."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, window: int) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._window = window

    def outcomes(self, policy: Policy, cases: Sequence[RecallCase]) -> list[Outcome]:
        pasts = self._summaries(cases) if policy == "summarise" else [Past()] * len(cases)
        prompts = [self._prompt(case, policy, past) for case, past in zip(cases, pasts, strict=True)]
        windows = [self._prompt(case, "window", Past()) for case in cases]
        texts = answers(self._core, self._tokenizer, [prompt.token_ids for prompt in prompts], NEW_TOKENS)
        return [
            Outcome(_holds(case, window) is False, _holds(case, prompt), is_right(case, text))
            for case, window, prompt, text in zip(cases, windows, prompts, texts, strict=True)
        ]

    def _prompt(self, case: RecallCase, policy: Policy, past: Past) -> Prompt:
        return build_prompt(
            self._tokenizer,
            self._window,
            Chat(_messages(case), past=past),
            max_new_tokens=NEW_TOKENS,
            context=ContextOptions(policy),
        )

    def _summaries(self, cases: Sequence[RecallCase]) -> list[Past]:
        """Returns the summaries of what `window` would leave out, each by the version itself."""
        tokens = Budget(self._window, NEW_TOKENS, ContextOptions("summarise")).aside - 32
        places, prompts = [], []
        for case in cases:
            cut = self._prompt(case, "summarise", Past()).receipt.cut
            places.append(int(cut.at.removeprefix("m_")) if cut else 0)
            said = (*_messages(case)[: places[-1]], Message("user", SUMMARY_REQUEST))
            options = ContextOptions("window")  # of more than a window, the newest messages
            prompt = build_prompt(self._tokenizer, self._window, Chat(said), max_new_tokens=tokens, context=options)
            prompts.append(prompt.token_ids)
        texts = answers(self._core, self._tokenizer, prompts, tokens)
        return [Past(summaries=((place, text),)) for place, text in zip(places, texts, strict=True)]


def print_policies(settings: Settings, reference: str, questions: int, console: Console) -> None:
    """Prints a table: recall of facts behind the cut, and before it, by policy."""
    repository = open_repository(settings)
    manifest = repository.resolve(reference)
    tokenizer = Tokenizer.load(repository.path(manifest))
    recaller = Recaller(load(settings, repository, manifest).core(), tokenizer, manifest.context_window)
    cases = long_cases(SEED, questions)
    view = Table("policy", f"told {NEAR} turns before at most", "told before the cut", "of these, sent")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(manifest.reference, total=len(WAYS))
        for policy in WAYS:
            view.add_row(policy, *_row(recaller.outcomes(policy, cases)))
            progress.advance(task)
    console.print(view)
    console.print(f"{manifest.reference}: {len(cases)} chats longer than its window, values that training never saw")


def _row(outcomes: Sequence[Outcome]) -> tuple[str, str, str]:
    def share(of: Sequence[Outcome], what: Callable[[Outcome], bool]) -> str:
        return f"{sum(map(what, of)) / max(1, len(of)):.1%} of {len(of)}"

    near, far = outcomes[::2], [each for each in outcomes[1::2] if each.is_dropped]
    right = [share(each, lambda one: one.is_right) for each in (near, far)]
    return right[0], right[1], share(far, lambda one: one.is_sent)


def _messages(case: RecallCase) -> tuple[Message, ...]:
    return tuple(Message(each["role"], each["content"]) for each in case.messages)


def _holds(case: RecallCase, prompt: Prompt) -> bool:
    """Returns whether a message with the fact's value was sent."""
    kept = set(prompt.receipt.kept)
    return any(holds(each["content"], case.expected) and f"m_{at}" in kept for at, each in enumerate(case.messages))
