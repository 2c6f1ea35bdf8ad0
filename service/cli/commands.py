"""A conversation is one chat with a server's session, and its commands are the lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from service.cli.client import Client, Fields, Refused
from service.cli.printing import Output
from service.cli.window import counted
from service.cli.wire import Answer, Message, Receipt, Session
from service.errors import DosirakError, InvalidRequest

SHOWN: Final = 20
HELP: Final = {
    "/history [HOW MANY]": f"the messages, those left out struck through; {SHOWN} where no number is given",
    "/pin MESSAGE": "keep a message, by its number or id, from being left out",
    "/unpin MESSAGE": "take that back",
    "/edit MESSAGE TEXT": "change what a message says",
    "/fork [MESSAGE]": "go on in a copy of the session up to a message",
    "/regenerate": "answer the last question again",
    "/policy [NAME]": "what is left out where not all fits: window, middle, summarise, retrieve or refuse",
    "/preview TEXT": "what of the chat a message would send, without sending it",
    "/new": "begin a new session",
    "/session": "this session's id: `dosirak chat --session` goes on with it",
    "/export FILE": "the session as JSON lines",
    "/help": "this",
    "/quit": "leave; Ctrl-D does as well",
}


@dataclass
class Conversation:
    """One conversation. New sessions are made with `settings`; `parameters` go with every turn."""

    client: Client
    output: Output
    session: Session
    settings: Fields
    parameters: Fields
    receipt: Receipt | None = None
    over: bool = False
    _known: dict[str, Message] = field(default_factory=dict)

    def turn(self, text: str) -> Fields:
        """Returns the body that says `text` in this session."""
        messages = [{"role": "user", "content": text}]
        return {"session_id": self.session.id, "messages": messages, "parameters": self.parameters}

    def hear(self, answer: Generator[str | Answer, None, None]) -> None:
        """Prints an answer as it comes. Ctrl-C stops it."""
        try:
            with closing(answer):
                for part in answer:
                    if isinstance(part, Answer):
                        self._answered(part)
                    else:
                        self.output.piece(part)
        except KeyboardInterrupt:
            self.output.stopped()
            if not self.output.interactive:
                raise

    def messages(self) -> tuple[Message, ...]:
        """Returns all messages of the session, as the server has them now."""
        found = self.client.messages(self.session.id)
        self._known = {message.id: message for message in found}
        return found

    def enter(self, session: Session) -> None:
        """Goes on in another session, with what its last answer saw."""
        self.session, self.receipt = session, None
        if session.message_count:
            receipts = [message.context for message in self.messages() if message.context]
            self.receipt = receipts[-1] if receipts else None

    def _answered(self, answer: Answer) -> None:
        before, receipt = self.receipt, answer.receipt
        last = receipt.dropped[-1] if receipt.dropped else ""
        if last and last not in self._known:
            with suppress(DosirakError):  # the answer itself has arrived
                self.messages()
        words = self._known[last].words if last in self._known else last
        self.output.answered(answer, before.dropped if before else (), words)
        self.receipt = receipt


Command = Callable[[Conversation, str], None]


def show_help(chat: Conversation, rest: str) -> None:
    chat.output.say("\n".join(f"{name:<24}{what}" for name, what in HELP.items()))


def history(chat: Conversation, rest: str) -> None:
    if rest and not rest.isdecimal():
        raise InvalidRequest("/history takes how many messages to show, as in /history 50")
    messages = chat.messages()
    shown = messages[-(int(rest) if rest else SHOWN) :] if rest != "0" else ()
    if len(shown) < len(messages):
        chat.output.say(f"{len(messages):,} messages, the last {len(shown)}:")
    chat.output.history(shown, len(messages) - len(shown) + 1, chat.receipt)


def pin(chat: Conversation, rest: str) -> None:
    _set_pinned(chat, rest, True)


def unpin(chat: Conversation, rest: str) -> None:
    _set_pinned(chat, rest, False)


def edit(chat: Conversation, rest: str) -> None:
    which, _, content = rest.partition(" ")
    if not content.strip():
        raise InvalidRequest("/edit takes a message and its new text, as in /edit 3 What I meant")
    number, message = _message(chat, which)
    chat.client.change_message(chat.session.id, message.id, {"content": content.strip()})
    chat.output.say(f"message {number} is changed; the answers after it stay as they are")


def fork(chat: Conversation, rest: str) -> None:
    number, message = _message(chat, rest or "last")
    chat.enter(chat.client.fork(chat.session.id, message.id))
    chat.output.say(f"this is {chat.session.id} now, a copy up to message {number}")


def regenerate(chat: Conversation, rest: str) -> None:
    chat.hear(chat.client.regenerate(chat.session.id, {"parameters": chat.parameters}))


def policy(chat: Conversation, rest: str) -> None:
    if rest:
        chat.session = chat.client.change(chat.session.id, {"policy": rest})
    chat.output.say(f"policy {chat.session.policy or 'window'}")


def preview(chat: Conversation, rest: str) -> None:
    if not rest:
        raise InvalidRequest("/preview takes the text that you would say, as in /preview What is my name?")
    found = chat.client.preview(chat.turn(rest))
    if found.context is None:
        raise Refused(found.error, numbers=found.numbers)
    chat.output.window(found.context)
    if found.context.dropped:
        chat.output.say(f"would leave out: {counted(found.context)}")


def new(chat: Conversation, rest: str) -> None:
    chat.enter(chat.client.create(chat.settings))
    chat.output.say(f"a new session: {chat.session.id}")


def session(chat: Conversation, rest: str) -> None:
    chat.output.say(chat.session.id)


def export(chat: Conversation, rest: str) -> None:
    if not rest:
        raise InvalidRequest("/export takes a file, as in /export chat.jsonl")
    lines, path = chat.client.export(chat.session.id), Path(rest).expanduser()
    try:
        with path.open("xb") as file:
            file.write(lines)
    except FileExistsError:
        raise InvalidRequest(f"{path} exists already: name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written ({error.strerror}): name another file") from None
    chat.output.say(f"{len(lines):,} bytes in {path}")


def leave(chat: Conversation, rest: str) -> None:
    chat.over = True


def unknown(chat: Conversation, name: str) -> None:
    raise InvalidRequest(f"{name} is no command; there are {', '.join(COMMANDS)}; // begins a message with a slash")


def _set_pinned(chat: Conversation, which: str, pinned: bool) -> None:
    number, message = _message(chat, which)
    chat.client.change_message(chat.session.id, message.id, {"pinned": pinned})
    stays = "is pinned: its turn is never left out" if pinned else "is pinned no more"
    chat.output.say(f"message {number} {stays}")


def _message(chat: Conversation, which: str) -> tuple[int, Message]:
    """Returns a message by its number in /history, by its id, or by `last`. Raises InvalidRequest where there is
    none."""
    messages = chat.messages()
    names = {message.id: number for number, message in enumerate(messages, 1)}
    number = len(messages) if which == "last" else int(which) if which.isdecimal() else names.get(which, 0)
    if not 1 <= number <= len(messages):
        hint = f"/history shows 1 to {len(messages)}" if messages else "the session has none yet"
        raise InvalidRequest(f"{which or 'Nothing'} names no message; {hint}")
    return number, messages[number - 1]


COMMANDS: Final[dict[str, Command]] = {
    "/history": history,
    "/pin": pin,
    "/unpin": unpin,
    "/edit": edit,
    "/fork": fork,
    "/regenerate": regenerate,
    "/policy": policy,
    "/preview": preview,
    "/new": new,
    "/session": session,
    "/export": export,
    "/help": show_help,
    "/quit": leave,
}
