"""Turns on their way into the store and back: what a turn brings, what an answer leaves, what a prompt gets.

A call whose arguments are no JSON object, for example one that a limit cut, stays a call and may get a result. Its text
is the member INVALID_JSON of an object, for no template could write it otherwise. A session's cut is where the context
was last cut, with the input budget of that call and the numbers of what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.context.partition import SYSTEM_POSITION
from service.context.policies import Policy
from service.context.sources import Before
from service.generation.answer import Answer
from service.generation.features import begun_text
from service.generation.request import SessionTurn
from service.storage.sessions import Answered, Json, NewMessage, NewReply, Said, Session, new_message_id
from service.text.arguments import whole
from service.text.messages import Message, ToolCall
from service.text.reasoning import Parted, ReasoningReader


def new_messages(turn: SessionTurn) -> tuple[NewMessage, ...]:
    """Returns the new messages of a turn, under its ids."""
    return tuple(stored_form(message, id) for message, id in zip(turn.messages, turn.ids, strict=False))


def named(turn: SessionTurn) -> SessionTurn:
    """Returns the turn with an id for each of its messages and for the answer."""
    return turn if turn.ids else replace(turn, ids=tuple(new_message_id() for _ in (*turn.messages, "answer")))


def stored_form(message: Message, id: str) -> NewMessage:
    calls = _calls(message) or None
    more = {"tool_call_id": message.tool_call_id, "tool_calls": calls, "reasoning": message.reasoning or None}
    return NewMessage(message.content, message.role, message.name, id=id, **more)  # type: ignore[arg-type]


def message_of(said: Said) -> Message:
    calls = (ToolCall(str(each["id"]), str(each["name"]), str(each["arguments"])) for each in said.tool_calls or ())
    return Message(said.role, said.content, said.name, tuple(calls), said.tool_call_id)


def with_answer(answer: Answer, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Returns the chat with its answer behind it. An answer that goes on from a message is one message with it."""
    return (*(messages[:-1] if answer.request.begun else messages), answer_message(answer))


def answer_message(answer: Answer) -> Message:
    """Returns the message that later prompts have for an answer: the same as where a client sends it back."""
    sequence = answer.best[0]
    calls = tuple(ToolCall(call.id, call.name, whole(call.arguments)) for call in sequence.calls)
    return Message("assistant", _parts(answer).content, tool_calls=calls)


def reply_of(answer: Answer, answered: Answered, id: str) -> NewReply:
    message = answer_message(answer)
    calls = _calls(message) or None
    return NewReply(message.content, answered, id=id, tool_calls=calls, reasoning=_parts(answer).reasoning or None)


def _parts(answer: Answer) -> Parted:
    """Returns the parts of the answer's message. A text that the answer goes on from is read together with it."""
    sequence, form = answer.best[0], answer.tokenizer.reasoning_form
    begun = begun_text(answer.request, answer.tokenizer)
    has_begun = form is not None and (form.opening in begun or (form.is_begun and form.closing in begun))
    if form is None or not has_begun:
        return Parted(sequence.reasoning, sequence.text if sequence.reads_reasoning else begun + sequence.text)
    closing = form.closing if sequence.reads_reasoning and sequence.text else ""
    reader = ReasoningReader(form, is_open=form.opening not in begun)
    return reader.push(f"{begun}{sequence.reasoning}{closing}{sequence.text}") + reader.finish()


def open_calls(stored: Sequence[Said]) -> set[str]:
    """Returns the ids of the calls since the user's last message."""
    called = set[str]()
    for said in stored:
        called = set() if said.role == "user" else called | {str(call["id"]) for call in said.tool_calls or ()}
    return called


def _calls(message: Message) -> list[Json]:
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]


def cut_position(session: Session) -> int:
    """Returns the position of the first message behind the cut."""
    at = (session.cut or {}).get("at")
    return at if isinstance(at, int) else SYSTEM_POSITION


def numbers_before(session: Session, policy: Policy) -> Before | None:
    """Returns the numbers of the messages before the cut, where this policy made the cut and the numbers are known."""
    cut = session.cut or {}
    return Before.from_dict(cut.get("before")) if cut.get("policy") == policy else None


def cut_limit(session: Session) -> int:
    """Returns the input budget that the cut was made for; 0 where it is not known."""
    limit = (session.cut or {}).get("limit")
    return limit if type(limit) is int and limit > 0 else 0


def cut_of(answer: Answer) -> dict[str, object] | None:
    """Returns what the session stores of this answer's cut."""
    partition, before = answer.receipt.partition, answer.prompt.before_cut
    if partition is None or partition.cut is None:
        return None
    cut: dict[str, object] = {
        "at": partition.cut,
        "policy": answer.receipt.policy,
        "limit": answer.prompt.cut_limit,
    }
    if before is None or not answer.deployment.tokenizer.probes.is_additive:
        return cut
    return {**cut, "before": replace(before, digest=answer.manifest.digest).to_dict()}
