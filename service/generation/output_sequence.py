"""An output sequence turns one sequence's tokens into text: it finds what each token adds, where a stop string ends the
text, and why the text ended.

    token ids ─▶ detokenizer ─▶ guard, where there is one ─▶ readers of reasoning and calls ─▶ deltas

It is synchronous and deterministic; it knows no engine, no time and no HTTP.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from service.engine.protocol.messages import FinishReason, StepOutput, TokenLogprobs
from service.generation.guard import Finding, Watch
from service.generation.guarded import Guarded
from service.generation.readers import Readers
from service.generation.request import GenerationRequest
from service.generation.token_delta import Call, CallDelta, Token, TokenDelta
from service.text.detokenizer import Detokenizer
from service.text.tokenizer import Tokenizer
from service.text.tools import CallBegun, CallText, Content


class OutputSequence:
    """Sequence number `number` of an answer. `sampled` are the engine's tokens; the last of them may be the one that
    completed a stop string. `tokens` are the tokens that went out, as a guard left them."""

    def __init__(
        self,
        number: int,
        seed: int,
        request: GenerationRequest,
        tokenizer: Tokenizer,
        stop_token_ids: tuple[int, ...],
        watch: Watch | None = None,
        readers: Readers | None = None,
    ) -> None:
        """`readers` part the text; without them all text is content."""
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
        self._is_one_call = request.tools is not None and not request.tools.is_parallel
        self._stop_token_ids = frozenset(stop_token_ids)
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer,
            request.stop,
            include_stop=request.include_stop,
            ignore_stop_until=request.sampling.min_tokens,
            shown=self._readers.shown,
            boundary=self._readers.boundary,
        )
        self._guarded = None if watch is None else Guarded(watch, tokenizer.stand_in_id)

    @property
    def text(self) -> str:
        """Returns all content that went out so far."""
        return "".join(self._parts)

    @property
    def reasoning(self) -> str:
        """Returns all text before the content, without its marks, that went out so far."""
        return "".join(self._reasoning)

    @property
    def reads_reasoning(self) -> bool:
        """Whether the text may have a reasoning part."""
        return self._readers.reasoning is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Returns what the guard has found so far."""
        return () if self._guarded is None else self._guarded.findings

    @property
    def mean_logprob(self) -> float:
        """Returns the value that `best_of` ranks by; minus infinity where no token has a logprob."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")

    def accept(self, output: StepOutput) -> list[TokenDelta]:
        """Returns the deltas of one step, one for each token; the deltas that a guard holds come with a later step.
        Drops the tokens after a completed stop string and does not count them."""
        deltas: list[TokenDelta] = []
        self.pooled += output.pooled
        self.prompt_logprobs += output.prompt_logprobs
        for position, token_id in enumerate(output.token_ids):
            measured = output.logprobs[position] if position < len(output.logprobs) else None
            is_last = position == len(output.token_ids) - 1
            deltas += self._add(token_id, measured, output.finish_reason if is_last else None)
            if self.finish_reason is not None:
                return deltas
        if output.finish_reason is not None:
            deltas += self._give(None, self._detokenizer.finish(), (0, 0), output.finish_reason)
        return deltas

    def _add(self, token_id: int, measured: TokenLogprobs | None, reason: FinishReason | None) -> list[TokenDelta]:
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
        return self._give(token, text, (start, self._detokenizer.begun), reason)

    def _count_reasoning(self) -> None:
        """Counts the last sampled token where it belongs to the reasoning: also the one that completes its mark."""
        boundary = self._readers.boundary
        if boundary is not None and not self._is_behind and not boundary.is_undecided:
            self._is_behind = not boundary.is_reasoning
            if boundary.is_reasoning or boundary.had_reasoning:
                self.reasoning_tokens = len(self.sampled)

    def _give(
        self, token: Token | None, text: str, span: tuple[int, int], reason: FinishReason | None
    ) -> list[TokenDelta]:
        if self._guarded is None:
            deltas = [TokenDelta(len(self.tokens), token, text, reason)]
        else:
            deltas = self._guarded.add(token, text, span, reason)
        given: list[TokenDelta] = []
        for delta in map(self._parted, deltas):
            given.append(delta)
            self._parts.append(delta.text)
            self._reasoning.append(delta.reasoning)
            self.finish_reason = delta.finish_reason
            if delta.token is not None:
                self.tokens.append(delta.token)
            if delta.finish_reason is not None:
                break
        return given

    def _parted(self, delta: TokenDelta) -> TokenDelta:
        """Returns the delta with its reasoning and its calls apart from its content. A second call ends an answer that
        may have one."""
        reason = delta.finish_reason
        reading = self._readers.read(delta.text, delta.finish_reason is not None)
        content, calls = [], list[CallDelta]()
        for piece in reading.pieces:
            match piece:
                case Content(text):
                    content.append(text)
                case CallBegun() if self.calls and self._is_one_call:
                    reason = FinishReason.STOP
                    break
                case CallBegun(index, name):
                    self.calls.append(Call(f"call_{secrets.token_hex(12)}", name))
                    calls.append(CallDelta(index, begun=self.calls[index]))
                case CallText(index, text):
                    self.calls[index].arguments += text
                    calls.append(CallDelta(index, arguments=text))
        text = "".join(content)
        self._content += len(text)
        for each in calls:
            if each.begun is not None:
                each.begun.at = self._content
        return replace(delta, text=text, calls=tuple(calls), reasoning=reading.reasoning, finish_reason=reason)
