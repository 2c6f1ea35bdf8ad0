"""A conversation is one session of a running server, as `dosirak chat` sees it. It knows no commands."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field

from service.cli.client import Client, Fields
from service.cli.printing import Output
from service.cli.wire import Answer, Message, Receipt, Session
from service.errors import DosirakError


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
