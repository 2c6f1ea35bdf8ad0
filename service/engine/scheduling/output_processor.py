"""The output processor applies the sampled tokens of a step to its sequences and collects the output of each.

It knows no queues or budgets. It hands a sequence that ends back to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.protocol.messages import FinishReason, StepOutput
from service.engine.sequences.batch import SampledToken, Scheduled
from service.engine.sequences.sequence import Sequence, SequenceStatus
from service.engine.sequences.tally import Tally

NOTHING_SAMPLED: Final = SampledToken(None)
_Times = tuple[float | None, float | None]
_NO_TIMES: Final[_Times] = (None, None)


class OutputProcessor:
    """Appends tokens to sequences, decides which sequences end, and keeps the outputs until `take_outputs`."""

    def __init__(self, blocks: BlockManager, remove: Callable[[Sequence], None]) -> None:
        """`remove` takes an ended sequence from the scheduler's lists and frees its blocks."""
        self.pending: list[StepOutput] = []
        self.num_accepted_tokens = 0
        self.num_certain_tokens = 0
        self.tally = Tally()
        self._blocks = blocks
        self._remove = remove

    def take_outputs(self) -> list[StepOutput]:
        """Returns all outputs since the last call."""
        outputs, self.pending = self.pending, []
        return outputs

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a sequence without another token."""
        self._remove(sequence)
        self._emit(sequence, NOTHING_SAMPLED, (), reason)

    def take_in(self, item: Scheduled, result: SampledToken, batch_size: int, now: float) -> None:
        """Takes in the result of `item`, computed in a step of `batch_size` sequences."""
        sequence = item.sequence
        num_known = item.num_tokens - len(item.draft_token_ids)
        start, num_tokens = sequence.num_computed_tokens, len(sequence.token_ids)
        samples = start + num_known == num_tokens
        self._blocks.mark_computed(sequence, num_known)
        sequence.num_steps += 1
        sequence.batch_size_sum += batch_size
        if result.prompt_logprobs:
            result = _unseen(sequence, result)
        if samples:
            self._sample(sequence, result, now)
        elif result.prompt_logprobs:
            self._emit(sequence, result)
        if item.draft_token_ids:
            self._sample_following(item, result, now)
        self.tally.add(sequence, start, item.num_tokens, num_known, len(sequence.token_ids) - num_tokens)

    def _sample_following(self, item: Scheduled, result: SampledToken, now: float) -> None:
        """Takes in the tokens behind drafts. Each was sampled behind a draft that equals the token before it, so that
        token's slot is written."""
        sequence = item.sequence
        for token in result.following:
            if sequence.status is not SequenceStatus.RUNNING:
                return
            self.num_certain_tokens += item.are_certain
            self.num_accepted_tokens += not item.are_certain
            self._blocks.mark_computed(sequence, 1)
            self._sample(sequence, token, now)
        if sequence.status is SequenceStatus.RUNNING:
            self._blocks.trim(sequence)

    def _sample(self, sequence: Sequence, result: SampledToken, now: float) -> None:
        token_id = result.token_id
        wants_states = sequence.request.params.pooling is not None
        if len(sequence.token_ids) >= sequence.max_num_tokens and not (wants_states and not result.pooled):
            # max_tokens is 0, or this a replay at its end
            times = _NO_TIMES if sequence.first_token_at is not None else _first_token_times(sequence, now)
            self._finish(sequence, result, (), FinishReason.LENGTH, times)
        elif token_id is None:
            self._blocks.forget(sequence)
            self._finish(sequence, result, (), FinishReason.ERROR)
        else:
            sequence.token_ids.append(token_id)
            reason, times = self._finish_reason(sequence, token_id), _NO_TIMES
            if sequence.first_token_at is None:
                times = _first_token_times(sequence, now)
            if reason is None:
                self._emit(sequence, result, (token_id,), None, times)
            else:
                self._finish(sequence, result, (token_id,), reason, times)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Returns the reason if this token ends the sequence. The runner bans stop tokens from the first `min_tokens`
        outputs; here they would only not stop."""
        params = sequence.request.params
        if token_id in params.stop_token_ids and sequence.num_output_tokens > params.min_tokens:
            return FinishReason.STOP
        if sequence.constraint is not None:
            sequence.constraint.follow(sequence.token_ids[sequence.num_prompt_tokens :])
            if sequence.constraint.is_broken:
                return FinishReason.ERROR
            if sequence.constraint.is_complete:
                return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.token_ids) >= sequence.max_num_tokens else None

    def _finish(
        self,
        sequence: Sequence,
        result: SampledToken,
        token_ids: tuple[int, ...],
        reason: FinishReason,
        times: _Times = _NO_TIMES,
    ) -> None:
        self._remove(sequence)
        self._emit(sequence, result, token_ids, reason, times)

    def _emit(
        self,
        sequence: Sequence,
        result: SampledToken,
        token_ids: tuple[int, ...] = (),
        reason: FinishReason | None = None,
        times: _Times = _NO_TIMES,
    ) -> None:
        self.pending.append(
            StepOutput(
                sequence.request.id,
                token_ids,
                (result.logprobs,) if token_ids and result.logprobs else (),
                result.prompt_logprobs,
                reason,
                sequence.num_cached_tokens,
                times[0],
                times[1],
                sequence.batch_size_sum / sequence.num_steps if reason and sequence.num_steps else None,
                sequence.num_preemptions,
                pooled=result.pooled,
            )
        )


def _unseen(sequence: Sequence, result: SampledToken) -> SampledToken:
    """Removes the prompt logprobs that were given out before a preemption or by an earlier engine process."""
    skip = max(0, sequence.num_prompt_logprobs_emitted - sequence.num_prompt_logprobs)
    sequence.num_prompt_logprobs += len(result.prompt_logprobs)
    fresh = result.prompt_logprobs[skip:]
    sequence.num_prompt_logprobs_emitted += len(fresh)
    return replace(result, prompt_logprobs=fresh)


def _first_token_times(sequence: Sequence, now: float) -> _Times:
    """Returns (queue seconds, prefill seconds); (None, None) if an earlier engine process gave out the first token."""
    sequence.first_token_at = now
    if sequence.request.emitted or sequence.scheduled_at is None:
        return _NO_TIMES
    return max(0.0, sequence.scheduled_at - sequence.request.arrival), now - sequence.scheduled_at
