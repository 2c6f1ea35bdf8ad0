"""Messages on their way into the store and back: what a turn brings, what an answer leaves, what a prompt gets.

A call that its limit cut is no call: no template could write it. It is stored as content, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.answers.output_sequence import OutputSequence
from service.answers.request import SessionTurn
from service.answers.token_delta import Call
from service.errors import InvalidRequest
from service.sessions import Answered, NewMessage, NewReply, Said
from service.text.arguments import parsed
from service.text.messages import Message, ToolCall


def new_messages(turn: SessionTurn) -> tuple[NewMessage, ...]:
    """Returns the new messages of a turn, under new ids."""
    return tuple(
        NewMessage(each.content, each.role, each.name, tool_call_id=each.tool_call_id) for each in turn.messages
    )


def message_of(said: Said) -> Message:
    calls = (ToolCall(str(each["id"]), str(each["name"]), str(each["arguments"])) for each in said.tool_calls or ())
    return Message(said.role, said.content, said.name, tuple(calls), said.tool_call_id)


def answer_message(sequence: OutputSequence) -> Message:
    """Returns the message that later prompts have for an answer."""
    whole = [call for call in sequence.calls if _is_whole(call)]
    cut = [f'{{"name": "{call.name}", "arguments": {call.arguments}' for call in sequence.calls if call not in whole]
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in whole)
    return Message("assistant", "\n".join(filter(None, (sequence.text, *cut))), tool_calls=calls)


def reply_of(sequence: OutputSequence, answered: Answered) -> NewReply:
    message = answer_message(sequence)
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return NewReply(message.content, answered, tool_calls=calls or None, reasoning=sequence.reasoning or None)


def check_results(stored: Sequence[Said], new: Sequence[NewMessage]) -> None:
    """Raises InvalidRequest for a result that names no call of the turn that the session is in."""
    called = set[str]()
    for said in stored:
        called = set() if said.role == "user" else called | {str(call["id"]) for call in said.tool_calls or ()}
    for index, message in enumerate(new):
        if message.role == "tool" and message.tool_call_id not in called:
            where = f"messages[{index}].tool_call_id"
            raise InvalidRequest(
                f"{where} names no call of the session since the user's last message: send the id of one", param=where
            )


def _is_whole(call: Call) -> bool:
    try:
        parsed(call.arguments)
    except InvalidRequest:
        return False
    return True
