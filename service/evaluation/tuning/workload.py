"""A workload turns a scenario's requests into the engine's: token ids by the version's own template. It sends nothing.

What only a server can do is refused here by name: actions on aliases, and requests for another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from models.checkpoint.decoder_start import decoder_start
from models.errors import RepositoryError
from models.manifest import Manifest, ModelReference
from models.repository.repository import Repository
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.requests import Dialogue, Drawn, text
from service.evaluation.scenarios.scenario import STREAMED, Scenario
from service.text.messages import Message
from service.text.tokenizer import Tokenizer

WORDS_A_TOKEN: Final = 3
"""Tokens of a word, about: for the answers of the turns that a chat has behind it when a slice begins."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`window` is the most tokens of prompt and answer together; of each alone where an encoder reads the prompt."""

    scenario: Scenario
    tokenizer: Tokenizer
    window: int
    has_encoder: bool
    adapter: str = ""

    @classmethod
    def of(cls, scenario: Scenario, repository: Repository, manifest: Manifest) -> Workload:
        """Raises NotMeasured for a scenario that needs a server, or names another model."""
        _require_engine_only(scenario, manifest.name)
        directory = repository.path(manifest)
        adapter = manifest.digest if manifest.has_adapter else ""
        has_encoder = bool(decoder_start(directory))
        return cls(scenario, Tokenizer.load(directory), manifest.context_window, has_encoder, adapter)

    def dialogue(self, draw: Random, user: int = 0) -> Dialogue:
        """Returns a user's dialogue. Users of chats with several turns begin at different turns, as in the middle of
        their run."""
        begun = Dialogue(self.scenario.requests, draw)
        turns = max(kind.turns for kind in self.scenario.requests)
        for _ in range(user % turns):
            drawn = begun.next_request()
            if begun.turn >= drawn.kind.turns:
                break
            begun.hear(text(draw, max(1, drawn.max_new_tokens // WORDS_A_TOKEN)), whole=True)
        return begun

    def requests(self, drawn: Drawn, name: str, seed: int, due: float) -> list[Request]:
        """Returns the sequences of one request, which is due at `due`. Raises NotMeasured for a single prompt that the
        window has no room for; returns none for a chat that has grown past it."""
        prompts = self._prompts(drawn)
        needed = max(map(len, prompts)) + (0 if self.has_encoder else drawn.max_new_tokens)
        if needed > self.window:
            if len(drawn.chat) > 1:
                return []
            raise NotMeasured(
                f"a prompt of {max(map(len, prompts))} tokens and {drawn.max_new_tokens} new ones do not fit the "
                f"window of {self.window}: lower prompt_words or max_new_tokens of {drawn.kind.route}"
            )
        deadline = due + self.scenario.load.answer_seconds
        return [
            Request(
                f"{name}-{number}",
                prompt,
                self._params(drawn, seed + number),
                arrival=due,
                deadline=deadline,
                adapter=self.adapter,
                is_streamed=drawn.kind.route in STREAMED,
            )
            for number, prompt in enumerate(prompts)
        ]

    def is_timed(self, drawn: Drawn) -> bool:
        """Returns whether times to the first token and between tokens count: of answers that are streamed, or of all
        where none is."""
        streams = any(kind.route in STREAMED for kind in self.scenario.requests)
        return drawn.kind.route in STREAMED or not streams

    def _params(self, drawn: Drawn, seed: int) -> SamplingParams:
        kind, most = drawn.kind, drawn.max_new_tokens
        stops = () if kind.ignore_eos else self.tokenizer.stop_token_ids
        return SamplingParams(most, temperature=kind.temperature, seed=seed, stop_token_ids=stops)

    def _prompts(self, drawn: Drawn) -> Sequence[tuple[int, ...]]:
        last = drawn.chat[-1]["content"]
        if drawn.kind.route == "/v1/completions":
            return [tuple(self.tokenizer.encode(each)) for each in (last, *drawn.others)]
        if self.tokenizer.chat_template is None:
            return [tuple(self.tokenizer.encode("\n".join(each["content"] for each in drawn.chat)))]
        chat = [Message(each["role"], each["content"]) for each in drawn.chat]
        return [tuple(self.tokenizer.render_chat(chat))]


def _require_engine_only(scenario: Scenario, name: str) -> None:
    if scenario.actions:
        raise NotMeasured(
            f"actions of the scenario {scenario.name} act on a server, and tune starts engines alone: take them out, "
            "or take a scenario without them"
        )
    for number, kind in enumerate(scenario.requests, 1):
        if kind.model is None:
            continue
        try:
            named = ModelReference.parse(kind.model).name
        except RepositoryError as error:
            raise NotMeasured(f"requests[{number}].model: {error}") from None
        if named != name:
            raise NotMeasured(f"requests[{number}].model is {kind.model}, and {name} is tuned: take it out")
