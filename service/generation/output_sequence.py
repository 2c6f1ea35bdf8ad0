"""An output sequence turns one sequence's tokens into text: it finds what each token adds, where a stop string ends the
text, and why the text ended.

    token ids ─▶ detokenizer ─▶ guard, where there is one ─▶ readers of reasoning and calls ─▶ deltas

A guard holds tokens back until it is certain which text of each may go out:

    tokens     [ call] [ 010] [-12] [34-56] [78] [ now]
    text        ████   ├──── a phone number ────┤
    given       sent   held ················ ▶ " [phone]", "", "", "" with stand-ins for ids

It is synchronous and deterministic; it knows no engine, no time and no HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from service.context.composition import with_composed
from service.engine.protocol.messages import FinishReason, StepOutput, TokenLogprobs
from service.generation.delta import Call, CallDelta, Token
from service.generation.guard import Finding, TextFilter
from service.generation.readers import Readers
from service.generation.request import GenerationRequest
from service.text.detokenizer import Detokenizer
from service.text.tokenizer import Tokenizer
from service.text.tools import CallBegun, CallText, Content
from service.text.tools.ids import new_id

A = TypeVar("A")
CUT: Final = (FinishReason.LENGTH, FinishReason.DEADLINE)
"""Reasons for an end that the model did not choose."""
Shown = tuple[Token | None, str]
"""What may go out of one step: its token, None at an end without one, and the text that it makes certain."""


@dataclass(slots=True)
class SequenceDelta(Generic[A]):
    """A delta is what one token, or an end without a token, adds to a sequence of an answer: the one shape between an
    engine's output and a dialect's event. `token` is None only at such an end (a deadline). `index` counts the
    sequence's tokens before it. `text` is content, `calls` is what is added to calls, `reasoning` to what stands before
    the content. `last` is set on the answer's very last delta, before it goes out."""

    answer: A
    sequence: OutputSequence
    index: int
    token: Token | None
    text: str
    finish_reason: FinishReason | None = None
    calls: tuple[CallDelta, ...] = ()
    reasoning: str = ""
    last: bool = False


class OutputSequence:
    """Sequence number `number` of an answer. `sampled` are the engine's tokens; the last of them may be the one that
    completed a stop string. `tokens` are the tokens that went out, as a guard left them; without their `top` where the
    request does not keep it."""

    def __init__(
        self,
        number: int,
        seed: int,
        request: GenerationRequest,
        tokenizer: Tokenizer,
        stop_token_ids: tuple[int, ...],
        text_filter: TextFilter | None = None,
        readers: Readers | None = None,
        inside: bool = False,
    ) -> None:
        """`readers` part the text; without them all text is content. `inside`: the answer goes on from a text."""
        self.number = number
        self.seed = seed
        self.sampled: list[int] = []
        self.tokens: list[Token] = []
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None
        self.last_at: float | None = None
        self.calls: list[Call] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.pooled = b""
        """The pooled hidden states of the prompt, where the request wants an embedding."""
        self.reasoning_tokens = 0
        self._is_behind = False  # the reasoning, or the beginning of a text without one
        self._readers = readers or Readers()
        self._parts: list[str] = []
        self._reasoning: list[str] = []
        self._content = 0  # characters beside calls
        self._include_stop = request.include_stop
        self._keeps_top = request.keeps_top
        self._is_one_call = request.tools is not None and not request.tools.is_parallel
        self._stop_token_ids = frozenset(stop_token_ids)
        self._tokenizer = tokenizer
        stop = with_composed(request.stop)
        self._detokenizer = Detokenizer(
            tokenizer,
            stop,
            include_stop=request.include_stop,
            ignore_stop_until=request.sampling.min_tokens,
            skip_special_tokens=request.skip_special_tokens,
            shown=self._readers.shown,
            boundary=self._readers.content,
            inside=inside,
            controls=tokenizer.controls_among(stop),
        )
        self._guard = None if text_filter is None else Guarded(text_filter, tokenizer.stand_in_id)

    @property
    def text(self) -> str:
        """Returns all content that went out so far."""
        return "".join(self._parts)

    @property
    def reasoning(self) -> str:
        """Returns all text before the content, without its marks, that went out so far."""
        return "".join(self._reasoning)

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and the arguments of all of them are JSON."""
        return bool(self.calls) and all(call.is_whole for call in self.calls)

    @property
    def is_parted(self) -> bool:
        """Whether what a token adds to the content may differ from its text: calls or reasoning are read from it."""
        return self._readers.calls is not None or self._readers.reasoning is not None

    @property
    def reads_reasoning(self) -> bool:
        """Whether the text may have a reasoning part."""
        return self._readers.reasoning is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Returns what the guard has found so far."""
        return () if self._guard is None else self._guard.findings

    @property
    def mean_logprob(self) -> float:
        """Returns the value that `best_of` ranks by; minus infinity where no token has a logprob."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")

    def accept(self, output: StepOutput, answer: A) -> list[SequenceDelta[A]]:
        """Returns the deltas of one step, one for each token; the deltas that a guard holds come with a later step.
        Drops the tokens after a completed stop string and does not count them. The deltas get `answer` as it is."""
        deltas: list[SequenceDelta[A]] = []
        self.pooled += output.pooled
        self.prompt_logprobs += output.prompt_logprobs
        for position, token_id in enumerate(output.token_ids):
            measured = output.logprobs[position] if position < len(output.logprobs) else None
            is_last = position == len(output.token_ids) - 1
            deltas += self._deltas_of(
                answer, *self._shown(token_id, measured, output.finish_reason if is_last else None)
            )
            if self.finish_reason is not None:
                return deltas
        if output.finish_reason is not None:
            rest = self._guarded(None, self._detokenizer.finish(), (0, 0), output.finish_reason)
            deltas += self._deltas_of(answer, *rest)
        return deltas

    def _shown(
        self, token_id: int, measured: TokenLogprobs | None, reason: FinishReason | None
    ) -> tuple[Sequence[Shown], FinishReason | None]:
        """Takes a sampled token. Returns what may go out now, and why the text ends there, if it does."""
        start = self._detokenizer.whole
        hidden = reason is FinishReason.STOP and token_id in self._stop_token_ids and not self._include_stop
        text = "" if hidden else self._detokenizer.push(token_id)
        if reason is not None:
            text += self._detokenizer.finish()  # which may still find a stop string
        if self._detokenizer.stopped:
            reason, self.stop_string = FinishReason.STOP, self._detokenizer.stop_string
        logprob, top = (measured.logprob, measured.top) if measured else (None, ())
        token = Token(token_id, text, logprob, self._tokenizer.is_special(token_id), top)
        self.sampled.append(token_id)
        if not hidden:
            self._count_reasoning()
        shown, reason = self._guarded(token, text, (start, self._detokenizer.begun), reason)
        if reason is FinishReason.CONTENT_FILTER:  # which is why the answer ends, though the text has a stop string too
            self.stop_string = None
        return shown, reason

    def _guarded(
        self, token: Token | None, text: str, span: tuple[int, int], reason: FinishReason | None
    ) -> tuple[Sequence[Shown], FinishReason | None]:
        if self._guard is None:
            return ((token, text),), reason
        return self._guard.add(token, text, span, reason)

    def _count_reasoning(self) -> None:
        """Counts the last sampled token where it belongs to the reasoning: also the one that completes its mark."""
        boundary = self._readers.boundary
        if boundary is not None and not self._is_behind and not boundary.is_undecided:
            self._is_behind = not boundary.is_reasoning
            if boundary.is_reasoning or boundary.had_reasoning:
                self.reasoning_tokens = len(self.sampled)

    def _deltas_of(self, answer: A, shown: Sequence[Shown], reason: FinishReason | None) -> list[SequenceDelta[A]]:
        deltas: list[SequenceDelta[A]] = []
        for at, (token, text) in enumerate(shown, 1):
            delta = SequenceDelta(answer, self, len(self.tokens), token, text)
            deltas.append(delta)
            self._part(delta, reason if at == len(shown) else None)
            self._parts.append(delta.text)
            self._reasoning.append(delta.reasoning)
            self.finish_reason = delta.finish_reason
            if token is not None:
                self.tokens.append(token if self._keeps_top or not token.top else replace(token, top=()))
            if delta.finish_reason is not None:
                break
        return deltas

    def _part(self, delta: SequenceDelta[A], reason: FinishReason | None) -> None:
        """Parts the delta's reasoning and its calls from its content. A second call ends an answer that may have
        one."""
        reading = self._readers.read(delta.text, reason is not None, reason in CUT)
        content, calls = [], list[CallDelta]()
        for piece in reading.pieces:
            match piece:
                case Content(text):
                    content.append(text)
                case CallBegun() if self.calls and self._is_one_call:
                    reason = FinishReason.STOP
                    break
                case CallBegun(index, name):
                    assert self._readers.calls is not None
                    self.calls.append(Call(new_id(self._readers.calls.form.ids), name))
                    calls.append(CallDelta(index, begun=self.calls[index]))
                case CallText(index, text):
                    self.calls[index].arguments += text
                    calls.append(CallDelta(index, arguments=text))
        delta.text, delta.calls = "".join(content), tuple(calls)
        delta.reasoning, delta.finish_reason = reading.reasoning, reason
        self._content += len(delta.text)
        for each in calls:
            if each.begun is not None:
                each.begun.at = self._content


@dataclass(frozen=True, slots=True)
class _Held:
    """One held step: the token, or None at an end without one; the position in the text up to which it is certain; and
    the held characters that the token has a part of, which may reach further."""

    token: Token | None
    end: int
    start: int
    stop: int


class Guarded:
    """Guarded holds back the tokens of one sequence. `stand_in` is the id that replaces a hidden token's id: the id
    would give its text away, and so would its alternatives. A guard that only flags holds nothing back."""

    def __init__(self, text_filter: TextFilter, stand_in: int) -> None:
        self._filter = text_filter
        self._stand_in = stand_in
        self._held: deque[_Held] = deque()
        self._fed = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._filter.findings

    def add(
        self, token: Token | None, text: str, span: tuple[int, int], reason: FinishReason | None
    ) -> tuple[list[Shown], FinishReason | None]:
        """Returns what is certain now, in order, and why the text ends there, if it does. At an end all is certain;
        CONTENT_FILTER is an end that the guard causes."""
        self._filter.feed(text)
        self._fed += len(text)
        self._held.append(_Held(token, self._fed, *span))
        if reason is not None:
            self._filter.end()
        if self._filter.stopped:
            reason = FinishReason.CONTENT_FILTER
        return [self._shown(self._held.popleft()) for _ in range(self._certain())], reason

    def _certain(self) -> int:
        """Returns how many of the first held steps can go out."""
        if not self._filter.holds:
            return len(self._held)
        shown = self._filter.shown
        return next((n for n, each in enumerate(self._held) if max(each.end, each.stop) > shown), len(self._held))

    def _shown(self, held: _Held) -> Shown:
        text, token = self._filter.take(held.end), held.token
        if token is not None and held.start < held.stop and self._filter.hides(held.start, held.stop):
            token = Token(self._stand_in, text, token.logprob, special=True)
        elif token is not None and text != token.text:
            token = replace(token, text=text)
        return token, text
