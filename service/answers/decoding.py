"""One sequence's tokens becoming text: what each token adds, where a stop string ends it, why it ended.

Synchronous and deterministic; knows no engine, no time and no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.answers.ask import Ask
from service.engine.request import FinishReason, StepOutput, TokenLogprobs
from service.text.detokenizer import Detokenizer
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `text` is what it made certain: empty inside a character or a possible stop string.

    `top` holds (token id, logprob) of the likeliest tokens at this position, likeliest first.
    """

    id: int
    text: str
    logprob: float | None = None
    special: bool = False
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token, or an end without a token, adds. `token` is None only at such an end (a deadline)."""

    token: Token | None
    text: str
    finish_reason: FinishReason | None = None


class Decoding:
    """Sequence number `number` of an answer. `tokens` are those sampled, the one that completed a stop string last."""

    def __init__(self, number: int, seed: int, ask: Ask, tokenizer: Tokenizer, stop_token_ids: tuple[int, ...]) -> None:
        self.number = number
        self.seed = seed
        self.tokens: list[Token] = []
        self.finish_reason: FinishReason | None = None
        self.by_stop_string = False
        self.last_at: float | None = None
        self._parts: list[str] = []
        self._include_stop = ask.include_stop
        self._stop_token_ids = frozenset(stop_token_ids)
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer, ask.stop, include_stop=ask.include_stop, ignore_stop_until=ask.sampling.min_tokens
        )

    @property
    def text(self) -> str:
        """Everything given out so far."""
        return "".join(self._parts)

    @property
    def mean_logprob(self) -> float:
        """What `best_of` ranks by; minus infinity where nothing was sampled or measured."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")

    def accept(self, output: StepOutput) -> list[Piece]:
        """The pieces of one step, one a token. Tokens after a completed stop string are dropped and not counted."""
        pieces: list[Piece] = []
        for position, token_id in enumerate(output.token_ids):
            measured = output.logprobs[position] if position < len(output.logprobs) else None
            is_last = position == len(output.token_ids) - 1
            pieces.append(self._add(token_id, measured, output.finish_reason if is_last else None))
            if self.finish_reason is not None:
                return pieces
        if output.finish_reason is not None:
            pieces.append(self._end_without_token(output.finish_reason))
        return pieces

    def _add(self, token_id: int, measured: TokenLogprobs | None, reason: FinishReason | None) -> Piece:
        hidden = reason is FinishReason.STOP and token_id in self._stop_token_ids and not self._include_stop
        text = "" if hidden else self._detokenizer.push(token_id)
        if reason is not None:
            text += self._detokenizer.finish()  # which may still find a stop string
        if self._detokenizer.stopped:
            reason, self.by_stop_string = FinishReason.STOP, True
        logprob, top = (measured.logprob, measured.top) if measured else (None, ())
        token = Token(token_id, text, logprob, self._tokenizer.is_special(token_id), top)
        self.tokens.append(token)
        return self._give(Piece(token, text, reason))

    def _end_without_token(self, reason: FinishReason) -> Piece:
        return self._give(Piece(None, self._detokenizer.finish(), reason))

    def _give(self, piece: Piece) -> Piece:
        self._parts.append(piece.text)
        self.finish_reason = piece.finish_reason
        return piece
