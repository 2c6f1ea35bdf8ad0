"""Notes are what HTTP and the log get of an answer beside its text: headers for the client, counts and times for the
log, and the generation itself for the span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from service.api.http.headers import etag
from service.api.shared.serialiser import guard_field
from service.generation.answer import Answer, Opening
from service.generation.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Generation:
    """The requests of one HTTP request, all with the same parameters; `opening` has their answers as they begin."""

    requests: Sequence[GenerationRequest]
    opening: Opening = field(default_factory=Opening)

    @classmethod
    def begin(cls, http: Request, requests: Sequence[GenerationRequest]) -> Generation:
        """Returns the generation, which `edge` finds at the request's end."""
        made = cls(requests)
        http.state.generation = made
        return made

    @property
    def is_streamed(self) -> bool:
        return self.requests[0].is_streamed


def whole_headers(answer: Answer) -> dict[str, str]:
    """Returns the headers of a stored answer: as `headers`, and the revision that its turn gives to its session. A
    stream's headers go out before its turn is stored."""
    turn = answer.request.turn
    before = turn.expected_revision if turn else None
    return {**headers(answer), **({} if before is None else etag(before + 1))}


def headers(answer: Answer) -> dict[str, str]:
    """Returns which version served the answer, and how much of the chat it received."""
    receipt = answer.receipt
    return {
        "X-Model-Version": answer.manifest.reference,
        "X-Context-Truncated": "true" if receipt.truncated else "false",
        "X-Context-Dropped-Tokens": str(receipt.dropped_tokens),
    }


def note(http: Request, answers: Sequence[Answer]) -> None:
    """Adds counts and times to the log line; never a prompt, never an answer. Adds nothing where no answer began."""
    if not answers:
        return
    usage, timings = [answer.usage() for answer in answers], answers[0].timings()
    if "replayed" in timings:  # in the log, `replayed` is a stored response
        timings["engine_replays"] = timings.pop("replayed")
    fields: dict[str, Any] = {
        "model": answers[0].manifest.reference,
        "digest": answers[0].manifest.short_digest,
        "finish_reason": answers[0].finish_reason.value,
        **timings,
    }
    for count in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        fields[count] = sum(each[count] for each in usage)
    receipts = [answer.receipt for answer in answers]
    fields["context_policy"] = receipts[0].policy
    fields["dropped_tokens"] = sum(receipt.dropped_tokens for receipt in receipts)
    for what in ("dropped", "summarised"):
        fields[f"messages_{what}"] = sum(getattr(receipt.counts, what) for receipt in receipts)
    fields["messages_recalled"] = sum(len(receipt.recalled) for receipt in receipts)
    matches = [each for answer in answers for each in guard_field(answer).get("guard", ())]
    if matches:
        fields["guard"] = matches
    http.state.log.update(fields)
