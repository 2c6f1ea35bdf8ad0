"""The generation request is what a client wants generated, in one shape for every dialect. It is valid by construction:
the wire schemas have checked every bound."""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from dataclasses import dataclass, field, replace
from typing import Final

from models.checkpoint.pooling import VersionPooling
from service.context.budget import ContextOptions
from service.context.prompt import Chat, Source
from service.engine.protocol.messages import Pooling, SamplingParams
from service.text.grammars import Grammar
from service.text.messages import ChatOptions, Document, Message
from service.text.reasoning import ReasoningUse
from service.text.tools import ToolUse

SEED_MASK = (1 << 63) - 1
CHANCE: Final = "do_sample"
"""Stands in `GenerationRequest.unset` where the request does not say whether tokens are drawn by chance at all."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """A turn of a stored session has its new messages; without any, the turn answers the last question again. With
    `expected_revision` None the turn takes the session as it is. `owner` owns the session; the owner comes from HTTP's
    credentials, not from the body. `system` stands in place of the session's own system prompt in this turn, and is not
    stored. `ids` are those of the new messages and, behind them, of the answer; without any they are made when the turn
    is. `places` say where the body has the call that each result names, for errors. The answer goes on from `begun`, an
    assistant's message, where it is set."""

    session: str
    messages: tuple[Message, ...] = ()
    expected_revision: int | None = None
    owner: str = ""
    system: str = ""
    ids: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    begun: Message | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """How a prompt becomes a vector: hidden states ─▶ pooled, in the engine ─▶ the first `dimensions` numbers ─▶ length
    1, if normalized. `pooling` and `normalize` None are the version's own. With `fits` a longer prompt than the window
    is cut to the window, at its end."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    fits: bool = False

    def kind(self, version: VersionPooling) -> Pooling:
        return self.pooling or Pooling(version.kind)

    def normalizes(self, version: VersionPooling) -> bool:
        return version.normalize if self.normalize is None else self.normalize

    def vector(self, pooled: bytes, version: VersionPooling) -> array[float]:
        """Returns the vector in fp32. A vector of zeros has no direction, so it stays as it is."""
        numbers = array("f", pooled)[: self.dimensions]
        length = math.hypot(*numbers) if self.normalizes(version) else 0.0
        return array("f", (each / length for each in numbers)) if length else numbers


@dataclass(frozen=True, slots=True)
class Choices:
    """Texts whose probabilities a request wants; `token_ids` are known once the version is."""

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for text. `arrival` and `deadline` are points of `time.monotonic()`.

    `sampling` says how tokens are chosen; of its counts and ids, `params` takes those of the request. The client calls
    its `min_tokens` by the name `min_tokens_field`. `unset` names its parameters that the client left open: the
    version's own values stand in their place. `notes` say what the version did in its own way. With `seed` None the
    server draws a seed and reports it. `max_new_tokens` None takes the rest of the window. `logprobs` N >= 0 gives each
    token's own logprob and the logprobs of the N likeliest tokens; `prompt_logprobs` does so for the prompt. `best_of`
    sequences are decoded, and the `n` with the highest mean logprob are returned; a stream of tokens needs `best_of` =
    `n`. `owner` is the client's identity as the server knows it: owners share no prefix blocks, and neither do two
    values of `cache_salt`. `models` are those that may answer the owner, as names or `name:version`; None allows all.
    `user` is the client's own name for its user.
    `max_window` is the window that the client wants, where it is less than the version's.
    `keep_alive`: after so many idle seconds the version may be unloaded; None leaves that to the server. With an
    `embedding` the answer is a vector of the prompt and no text; `max_new_tokens` is 0. With `choices` the answer is
    their probabilities and no text; there are `n` = `best_of` of them. With `continues` the answer goes on from the
    chat's last message, an assistant's. `is_streamed` says that the client gets tokens as they come.
    `keeps_top` says that a body is made of the answer at its end: only then are the N likeliest tokens kept behind
    their delta, 2.5 kB a token where N is 20.
    """

    id: str
    source: Source
    model: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    min_tokens_field: str = "min_tokens"
    unset: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    max_new_tokens: int | None = None
    max_window: int | None = None
    documents: tuple[Document, ...] = ()
    truncate: int | None = None
    context: ContextOptions | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    tools: ToolUse | None = None
    reasoning: ReasoningUse | None = None
    template_variables: tuple[tuple[str, str | int | float | bool | None], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    best_of: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    embedding: Embedding | None = None
    choices: Choices | None = None
    priority: int = 0
    deadline_ms: int | None = None
    owner: str = ""
    models: frozenset[str] | None = None
    cache_salt: str = ""
    user: str = ""
    turn: SessionTurn | None = None
    continues: bool = False
    keep_alive: float | None = None
    is_streamed: bool = False
    keeps_top: bool = True
    arrival: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float | None:
        return None if self.deadline_ms is None else self.arrival + self.deadline_ms / 1000

    @property
    def prefix_salt(self) -> str:
        """Returns what keeps the request's prefix blocks from others': its owner, with the client's own salt."""
        return f"{self.owner}\n{self.cache_salt}" if self.cache_salt else self.owner

    @property
    def is_background(self) -> bool:
        """Returns whether this is the server's own work, which waits behind every client's: those send 0 to 9."""
        return self.priority < 0

    @property
    def chat_options(self) -> ChatOptions:
        return ChatOptions(self.tools.tools if self.tools else (), self.template_variables, self.continues)

    @property
    def begun(self) -> Message | None:
        """Returns the assistant's message that the answer goes on from; None where there is none."""
        chat = self.source.messages if isinstance(self.source, Chat) else ()
        return chat[-1] if self.chat_options.is_open(chat) else None

    def stop_ids(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the tokens that end an answer: the request's, and the version's `own` unless they are ignored."""
        return (*self.stop_token_ids, *(() if self.ignore_eos else own))

    def params(self, max_tokens: int, seed: int, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        """Returns the engine's parameters of one sequence. Ranking several sequences by likelihood needs their
        logprobs. `stop_token_ids` are the version's own."""
        logprobs = 0 if self.logprobs is None and self.best_of > self.n else self.logprobs
        return replace(
            self.sampling,
            max_tokens=max_tokens,
            seed=seed & SEED_MASK,
            stop_token_ids=self.stop_ids(stop_token_ids),
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            grammar=self.grammar.text if self.grammar else "",
            grammar_begun=self.grammar.begun if self.grammar else "",
        )


def conversation_of(request: GenerationRequest) -> str | None:
    """Returns the same opaque key for every turn of a chat. The key is made of the session; without one, of the user
    and the messages up to the first user message. Chats of one user that begin alike share a key. Returns None where
    nothing tells conversations apart."""
    if request.turn is not None:
        return hashlib.sha256(repr((request.turn.owner, request.turn.session)).encode()).hexdigest()
    match request.source:
        case Chat(messages):
            opening = list[tuple[str, str]]()
            for message in messages:
                opening.append((message.role, message.content))
                if message.role == "user":
                    break
        case _ if request.user:
            opening = []
        case _:
            return None
    return hashlib.sha256(repr((request.owner, request.user, opening)).encode()).hexdigest()
