"""Anthropic's turns become the messages that templates know.

    turns      user: text            assistant: thinking, text, calls     user: results, text
    messages   user                  assistant with tool_calls            tool, tool, user

Neighbours of one role are one message, as Anthropic has it, for many templates want them to take turns. A system
message behind others is sent as the user's text at its place: few templates have one there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from service.api.anthropic.block_schemas import ContentBlock, TurnMessage, joined
from service.api.anthropic.schemas import CountTokensBody
from service.api.shared.chat_schemas import turn_of as session_turn_of
from service.errors import InvalidRequest
from service.generation.request import SessionTurn
from service.text.messages import Message

STORED_CALL: Final = "call_"
SHOWN_CALL: Final = "toolu_"
"""Anthropic's clients see the call `call_X` of every other dialect as `toolu_X`."""
SHORT: Final = 9
"""Characters of an id as Mistral's versions write it: without `call_`."""


def shown_call(id: str) -> str:
    return f"{SHOWN_CALL}{id.removeprefix(STORED_CALL)}"


def turn_of(body: CountTokensBody, session_id: str) -> SessionTurn:
    """Returns the turn of a session: results under the ids that the session has for their calls, then texts."""
    chat = _Chat("", is_whole=False)
    for index, turn in enumerate(body.messages):
        chat.add(index, turn)
    places = [
        f"messages[{index}].content[{at}].tool_use_id"
        for index, turn in enumerate(body.messages)
        for at, block in enumerate(turn.content)
        if block.type == "tool_result"
    ]
    messages = tuple(map(_as_stored, chat.whole()))
    found = session_turn_of(session_id, messages, continues(body))
    return replace(found, system=joined(body.system or []), places=tuple(places))


def continues(body: CountTokensBody) -> bool:
    """Returns whether the answer goes on from the last message, as Anthropic has it of each assistant's. Raises
    InvalidRequest for one with calls."""
    last = body.messages[-1]
    if any(block.type == "tool_use" for block in last.content):
        raise InvalidRequest(
            "`messages` end with calls of tools: send a user's message with their tool_result blocks behind them",
            param="messages",
        )
    return last.role == "assistant"


def _as_stored(message: Message) -> Message:
    id = message.tool_call_id
    if id is None or not id.startswith(SHOWN_CALL):
        return message
    own = id.removeprefix(SHOWN_CALL)
    return replace(message, tool_call_id=own if len(own) == SHORT else f"{STORED_CALL}{own}")


def chat_of(body: CountTokensBody) -> tuple[Message, ...]:
    """Returns the chat. Raises InvalidRequest for a result without its call."""
    chat = _Chat(joined(body.system or []))
    for index, turn in enumerate(body.messages):
        chat.add(index, turn)
    return chat.whole()


class _Chat:
    """A chat in the making, with every call that a result names if it `is_whole`. `_instructions` are system messages
    that wait for the user's next text: results must stand right behind their calls."""

    def __init__(self, system: str, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._messages = [Message("system", system)] if system else []
        self._called: set[str] = set()
        self._instructions: list[str] = []

    def add(self, index: int, turn: TurnMessage) -> None:
        if turn.role == "assistant":
            self._flush()
        for message in _turn(turn):
            if message.role == "tool" and self._is_whole:
                self._require_call(message, index, turn)
            if message.role == "system" and any(each.role != "system" for each in self._messages):
                self._instructions.append(message.content)
            elif message.role == "user":
                self._instructions.append(message.content)
                self._flush()
            else:
                self._called |= {call.id for call in message.tool_calls}
                self._append(message)

    def whole(self) -> tuple[Message, ...]:
        self._flush()
        return tuple(self._messages)

    def _flush(self) -> None:
        if self._instructions:
            self._append(Message("user", "\n".join(self._instructions)))
            self._called, self._instructions = set(), []

    def _append(self, message: Message) -> None:
        last = self._messages[-1] if self._messages else None
        if last is not None and last.role == message.role != "tool":
            self._messages[-1] = _merged(last, message)
        else:
            self._messages.append(message)

    def _require_call(self, message: Message, index: int, turn: TurnMessage) -> None:
        if message.tool_call_id in self._called:
            return
        at = next(at for at, block in enumerate(turn.content) if block.tool_use_id == message.tool_call_id)
        where = f"messages[{index}].content[{at}].tool_use_id"
        raise InvalidRequest(
            f"`{where}` names no call since the user's last text: send the tool_use block of that call in the message "
            "before, and results before text",
            param=where,
        )


def _turn(turn: TurnMessage) -> Iterator[Message]:
    """Yields the messages of one turn: each result of a tool is a message, and so is the text between them."""
    texts: list[ContentBlock] = []
    for block in turn.content:
        if block.type == "tool_result":
            if texts:
                yield _message(turn, texts)
                texts = []
            yield Message("tool", block.result, tool_call_id=block.tool_use_id)
        else:
            texts.append(block)
    if texts or not turn.content:
        yield _message(turn, texts)


def _message(turn: TurnMessage, blocks: Sequence[ContentBlock]) -> Message:
    text = "\n".join(block.text or "" for block in blocks if block.type == "text")
    thinking = "\n".join(block.thinking or "" for block in blocks if block.type == "thinking")
    calls = tuple(block.call for block in blocks if block.type == "tool_use")
    return Message(turn.role, text, tool_calls=calls, reasoning=thinking)


def _merged(last: Message, message: Message) -> Message:
    text = "\n".join(each for each in (last.content, message.content) if each)
    reasoning = "\n".join(each for each in (last.reasoning, message.reasoning) if each)
    return replace(last, content=text, tool_calls=last.tool_calls + message.tool_calls, reasoning=reasoning)
