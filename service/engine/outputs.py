"""From what a step sampled to the news of a sequence. Reads sequences; of their state it changes only what was told."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from service.engine.batch import SampledToken
from service.engine.messages import FinishReason, StepOutput
from service.engine.sequence import Sequence

NOTHING_SAMPLED: Final = SampledToken(None)
NO_TIMES: Final = (None, None)


def unseen(sequence: Sequence, result: SampledToken) -> SampledToken:
    """Without the prompt logprobs that were given out before a preemption or by an earlier engine process."""
    skip = max(0, sequence.num_prompt_logprobs_emitted - sequence.num_prompt_logprobs)
    sequence.num_prompt_logprobs += len(result.prompt_logprobs)
    fresh = result.prompt_logprobs[skip:]
    sequence.num_prompt_logprobs_emitted += len(fresh)
    return replace(result, prompt_logprobs=fresh)


def first_token_times(sequence: Sequence, now: float) -> tuple[float | None, float | None]:
    """(queue seconds, prefill seconds); nothing when an earlier engine process gave the first token out."""
    sequence.first_token_at = now
    if sequence.request.emitted or sequence.scheduled_at is None:
        return None, None
    return max(0.0, sequence.scheduled_at - sequence.request.arrival), now - sequence.scheduled_at


def output_of(
    sequence: Sequence,
    result: SampledToken = NOTHING_SAMPLED,
    token_ids: tuple[int, ...] = (),
    reason: FinishReason | None = None,
    times: tuple[float | None, float | None] = NO_TIMES,
) -> StepOutput:
    return StepOutput(
        request_id=sequence.request.id,
        token_ids=token_ids,
        logprobs=(result.logprobs,) if token_ids and result.logprobs else (),
        prompt_logprobs=result.prompt_logprobs,
        finish_reason=reason,
        num_cached_tokens=sequence.num_cached_tokens,
        queue_seconds=times[0],
        prefill_seconds=times[1],
        batch_size_mean=sequence.batch_size_sum / sequence.num_steps if reason and sequence.num_steps else None,
        num_preemptions=sequence.num_preemptions,
    )
