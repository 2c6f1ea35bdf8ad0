"""A session's cut is where the context was last cut, with the numbers of what stands before it. The module reads it
of a session and makes it of an answer."""

from __future__ import annotations

from dataclasses import replace

from service.context.partition import SYSTEM_POSITION
from service.context.policies import Policy
from service.context.sources import Before
from service.generation.answer import Answer
from service.storage.sessions import Session


def cut_position(session: Session) -> int:
    """Returns the position of the first message behind the cut."""
    at = (session.cut or {}).get("at")
    return at if isinstance(at, int) else SYSTEM_POSITION


def numbers_before(session: Session, policy: Policy) -> Before | None:
    """Returns the numbers of the messages before the cut, where this policy made the cut and the numbers are known."""
    cut = session.cut or {}
    return Before.from_dict(cut.get("before")) if cut.get("policy") == policy else None


def cut_of(answer: Answer) -> dict[str, object] | None:
    """Returns what the session stores of this answer's cut."""
    partition, before = answer.receipt.partition, answer.prompt.before_cut
    if partition is None or partition.cut is None:
        return None
    cut: dict[str, object] = {"at": partition.cut, "policy": answer.receipt.policy}
    if before is None or not answer.deployment.tokenizer.is_additive:
        return cut
    return {**cut, "before": replace(before, digest=answer.manifest.digest).to_dict()}
