"""The generation request: what a caller asks for, in one shape for every dialect. It is valid by construction: the wire
schemas have checked every bound."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

from service.context.options import ContextOptions
from service.context.prompt import Chat, Source
from service.engine.messages import SamplingParams
from service.text.messages import Document, Message

SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, as `SamplingParams` spells it; `seed` None lets the server draw one and report it."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """A turn of a stored session: its new messages, none to answer the last question again. `expected_revision` None
    takes the session as it is. `owner` is whose session it must be; HTTP knows, not the body."""

    session: str
    messages: tuple[Message, ...] = ()
    expected_revision: int | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for text. `arrival` and `deadline` are points of `time.monotonic()`.

    `max_new_tokens` None takes what is left of the window. `logprobs` N >= 0 gives every token's own logprob and those
    of the N likeliest; `prompt_logprobs` likewise for the prompt. `best_of` sequences are decoded, the `n` with the
    highest mean logprob are answered; a stream needs `best_of` = `n`. `owner` is whose it is, as the server knows it:
    owners share no prefix blocks. `user` is the caller's own word for its user.
    """

    id: str
    source: Source
    model: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int | None = None
    documents: tuple[Document, ...] = ()
    truncate: int | None = None
    context: ContextOptions | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    n: int = 1
    best_of: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    deadline_ms: int | None = None
    owner: str = ""
    user: str = ""
    turn: SessionTurn | None = None
    arrival: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float | None:
        return None if self.deadline_ms is None else self.arrival + self.deadline_ms / 1000

    def params(self, max_tokens: int, seed: int, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        """The engine's parameters of one sequence; ranking several by likelihood needs their logprobs."""
        chosen = self.sampling
        logprobs = 0 if self.logprobs is None and self.best_of > self.n else self.logprobs
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(chosen.min_tokens, max_tokens),
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            min_p=chosen.min_p,
            typical_p=chosen.typical_p,
            repetition_penalty=chosen.repetition_penalty,
            frequency_penalty=chosen.frequency_penalty,
            presence_penalty=chosen.presence_penalty,
            logit_bias=chosen.logit_bias,
            seed=seed & SEED_MASK,
            stop_token_ids=() if chosen.ignore_eos else stop_token_ids,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )


def conversation_of(request: GenerationRequest) -> str | None:
    """The same opaque key for every turn of a chat: its session; else its user and its messages up to the first of the
    user's. Chats of one user that begin alike share it. None where there is nothing to tell conversations apart by."""
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
    return hashlib.sha256(repr((request.user, opening)).encode()).hexdigest()
