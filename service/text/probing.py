"""Probes find out what a version's chat template writes, by small chats that it renders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, Protocol

from service.errors import InvalidRequest
from service.text.chat import EncodedChat
from service.text.messages import Message, ToolCall

QUESTION: Final = Message("user", "a")
"""The shortest last turn: what a chat has more than this one takes is known by comparison."""
_SYSTEM: Final = Message("system", "b")
_ANSWER: Final = Message("assistant", "c")
_WITH_RESULT: Final = [
    QUESTION,
    Message("assistant", "", tool_calls=(ToolCall("d", "d", "{}"),)),
    Message("tool", "e", tool_call_id="d"),
]
_NAMES: Final = ("fg", "hi")
_USUALLY_AROUND: Final = 8


class Tokenizer(Protocol):
    """What probes need of a version's tokenizer."""

    def render_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> EncodedChat: ...

    def chat_tokens(self, messages: Sequence[Message]) -> int: ...

    def continues(self, messages: Sequence[Message]) -> bool: ...

    def text_tokens(self, text: str) -> int: ...

    def tool_tokens(self, messages: Sequence[Message]) -> int: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class Probes:
    """What is known of one tokenizer's template with its tools and variables. Each fact is found at its first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def places_tools(self) -> bool:
        """Whether the template writes the tokenizer's tools, if in the place of a longer system part of its own."""
        return self._tokenizer.tool_tokens([QUESTION]) != 0

    @cached_property
    def takes_two_calls(self) -> bool:
        """Whether the template writes a message with two calls and their results, where it writes one with one."""
        calls = tuple(ToolCall(f"{each}0000000", each, "{}") for each in _NAMES)
        results = tuple(Message("tool", "e", tool_call_id=call.id) for call in calls)
        one, two = ([QUESTION, Message("assistant", "", tool_calls=calls[:many]), *results[:many]] for many in (1, 2))
        return self._writes_all(two) or not self._writes_all(one)

    def opening_of(self, role: str) -> str:
        """Returns the end of a prompt, where the answer begins behind a message of this role; empty where the template
        cannot write one."""
        own = {"tool": self._tool_opening, "assistant": self._open_opening}
        return own.get(role, "") or self._opening

    @cached_property
    def _open_opening(self) -> str:
        """The end of a prompt whose last message is an assistant's without text, where the answer goes on from it."""
        return self._rendered([QUESTION, replace(_ANSWER, content="")]) if self._tokenizer.continues([_ANSWER]) else ""

    @cached_property
    def trims_open(self) -> bool:
        """Whether the template cuts the blanks off a message that an answer goes on from."""
        blank = replace(_ANSWER, content=f"{_ANSWER.content} ")
        return self._rendered([QUESTION, blank]) == self._rendered([QUESTION, _ANSWER])

    @cached_property
    def _opening(self) -> str:
        return self._rendered([QUESTION])

    @cached_property
    def _tool_opening(self) -> str:
        return self._rendered(_WITH_RESULT)

    def _rendered(self, chat: Sequence[Message]) -> str:
        try:
            return self._tokenizer.decode(self._tokenizer.render_chat(chat), skip_special_tokens=False)
        except InvalidRequest:
            return ""

    @cached_property
    def has_later_systems(self) -> bool:
        """Whether the template writes a system message that is not the chat's first."""
        return self._writes_all((_SYSTEM, Message("system", "d"), QUESTION))

    @cached_property
    def has_systems_between(self) -> bool:
        """Whether the template writes a system message behind an answer, with or without one at the chat's
        beginning."""
        said = (QUESTION, _ANSWER, Message("system", "d"), Message("user", "e"))
        return all(map(self._writes_all, (said, (_SYSTEM, *said))))

    def _writes_all(self, chat: Sequence[Message]) -> bool:
        try:
            return None not in self._tokenizer.encode_chat(chat).shares.messages
        except InvalidRequest:
            return False

    @cached_property
    def named_roles(self) -> frozenset[str]:
        """Returns the roles whose messages' names the template writes."""
        chats = {
            "system": [_SYSTEM, QUESTION],
            "user": [QUESTION],
            "assistant": [QUESTION, _ANSWER, QUESTION],
            "tool": _WITH_RESULT,
        }
        return frozenset(role for role, chat in chats.items() if self._writes_name(role, chat))

    def _writes_name(self, role: str, chat: Sequence[Message]) -> bool:
        try:
            one, other = (
                self._tokenizer.render_chat([replace(each, name=name) if each.role == role else each for each in chat])
                for name in _NAMES
            )
        except InvalidRequest:
            return False
        return one != other

    @cached_property
    def is_additive(self) -> bool:
        """Whether a turn takes the same number of tokens at every place before the last one, so that sums over turns
        are exact. A few chats show it."""
        texts = ("a", " 가나 b\n", "")
        turns = [(Message("user", text), Message("assistant", text + "c")) for text in texts]
        last, systems = Message("user", "d"), ((), (Message("system", "e"),))
        try:
            return all(len(self._costs(system, turns, turn, last)) == 1 for system in systems for turn in turns)
        except InvalidRequest:
            return False

    def _costs(
        self,
        system: tuple[Message, ...],
        turns: Sequence[tuple[Message, ...]],
        turn: tuple[Message, ...],
        last: Message,
    ) -> set[int]:
        """Returns the tokens that `turn` adds to a chat as its first turn, before each of `turns`, and behind each."""
        count = self._tokenizer.chat_tokens
        costs = {count((*system, *turn, last)) - count((*system, last))}
        for other in turns:
            without = count((*system, *other, last))
            costs |= {count((*system, *both, last)) - without for both in ((*turn, *other), (*other, *turn))}
        return costs

    @cached_property
    def question_tokens(self) -> int:
        """Returns the tokens of a chat of QUESTION alone. Raises InvalidRequest where the template refuses it."""
        return self._tokenizer.chat_tokens([QUESTION])

    @cached_property
    def around(self) -> int:
        """Returns the tokens around one message, rounded up; a usual number if the template refuses the test chat."""
        answer = Message("assistant", "a")
        try:
            once, thrice = (
                self._tokenizer.encode_chat(chat).count for chat in ((QUESTION,), (QUESTION, answer, QUESTION))
            )
        except InvalidRequest:
            return _USUALLY_AROUND
        return max(0, -(-(thrice - once) // 2) - self._tokenizer.text_tokens("a"))
