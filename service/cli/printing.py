"""A printer shows a chat: with colours and the window's bar, plainly, or as one JSON object a turn. It sends
nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final, Protocol

import msgspec
from rich.console import Console
from rich.text import Text

from service.cli.client import Refused
from service.cli.foreign import clean
from service.cli.window import BETWEEN, WIDEST, mark, picture, receipt_lines, shortened
from service.cli.wire import Answer, Message, Receipt
from service.errors import DosirakError

SPEAKERS: Final = {"user": "you      ", "assistant": "dosirak  ", "tool": "result   "}


class Output(Protocol):
    """What happens in a chat, as it happens. `interactive`: a person types, and Ctrl-C ends only the answer."""

    interactive: ClassVar[bool]

    def piece(self, text: str) -> None: ...

    def answered(self, answer: Answer, before: Iterable[str], words: str) -> None:
        """Shows an answer. `before`: ids that were left out already; `words`: text of the last message left out."""

    def stopped(self) -> None: ...

    def failed(self, error: DosirakError) -> None: ...

    def say(self, text: str | Text) -> None: ...

    def window(self, receipt: Receipt) -> None: ...

    def history(self, messages: Sequence[Message], first: int, receipt: Receipt | None) -> None: ...


class Terminal:
    """Shows a chat to people on a terminal."""

    interactive: ClassVar[bool] = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = False

    def piece(self, text: str) -> None:
        if not self._begun:
            self._console.print(f"[bold]{SPEAKERS['assistant']}[/]", end="")
        self._begun = True
        self._console.out(clean(text), end="", highlight=False)

    def answered(self, answer: Answer, before: Iterable[str], words: str) -> None:
        self._end_line()
        receipt = answer.receipt
        self.window(receipt)
        for line in receipt_lines(receipt, before, clean(words), self._console.width):
            self.say(Text(line, "yellow"))
        if answer.finish_reason == "length":
            self.say(Text("the answer ended at its limit: --max-new-tokens raises it", "dim"))

    def stopped(self) -> None:
        self._end_line()
        self.say(Text("stopped: a turn without its whole answer is not stored", "dim"))

    def failed(self, error: DosirakError) -> None:
        self._end_line()
        self.say(Text.assemble(("refused  " if isinstance(error, Refused) else "error    ", "red"), clean(str(error))))
        if error.numbers:
            self.say(Text(BETWEEN.join(f"{name} {number:,}" for name, number in error.numbers.items()), "dim"))

    def say(self, text: str | Text) -> None:
        self._console.print(text, highlight=False, markup=False)

    def window(self, receipt: Receipt) -> None:
        for line in [*picture(receipt, self._console.width), *(Text(note, "dim") for note in receipt.notes)]:
            self._console.print(line, highlight=False)

    def history(self, messages: Sequence[Message], first: int, receipt: Receipt | None) -> None:
        for number, message in enumerate(messages, first):
            gone = mark(receipt, message.id)
            word = gone or ("pinned" if message.pinned else "")
            line = Text.assemble((f"{number:>4}  ", "dim"), (SPEAKERS.get(message.role, f"{message.role:<9}"), "bold"))
            line.append(f"{word}  " if word else "", "dim")
            self.say(line.append(clean(message.words).strip(), "dim strike" if gone else ""))

    def _end_line(self) -> None:
        if self._begun:
            self._console.out("")
        self._begun = False


class Plain:
    """For pipes: answers and output of commands go to standard output, errors and left-out messages to standard
    error."""

    interactive: ClassVar[bool] = False

    def __init__(self) -> None:
        self._begun = False

    def piece(self, text: str) -> None:
        self._begun = True
        print(clean(text), end="", flush=True)

    def answered(self, answer: Answer, before: Iterable[str], words: str) -> None:
        self._end_line()
        for line in receipt_lines(answer.receipt, before, clean(words), WIDEST):
            print(line, file=sys.stderr)

    def stopped(self) -> None:
        self._end_line()

    def failed(self, error: DosirakError) -> None:
        self._end_line()
        print(f"error: {clean(str(error))}", file=sys.stderr)

    def say(self, text: str | Text) -> None:
        print(text)

    def window(self, receipt: Receipt) -> None:
        print(msgspec.json.encode(receipt).decode())

    def history(self, messages: Sequence[Message], first: int, receipt: Receipt | None) -> None:
        for number, message in enumerate(messages, first):
            gone = f" ({word})" if (word := mark(receipt, message.id)) else ""
            print(f"{number} {message.role}{gone}: {shortened(clean(message.words), 200)}")

    def _end_line(self) -> None:
        if self._begun:
            print()
        self._begun = False


class JsonLines(Plain):
    """One object a turn: the answer with its receipt, or the error."""

    def piece(self, text: str) -> None:
        pass

    def answered(self, answer: Answer, before: Iterable[str], words: str) -> None:
        shown = msgspec.structs.asdict(answer)
        self._line({"text": shown.pop("generated_text"), **shown})

    def failed(self, error: DosirakError) -> None:
        kind = error.kind if isinstance(error, Refused) else error.code
        self._line({"error": str(error), "code": kind, **error.numbers})

    def say(self, text: str | Text) -> None:
        print(text, file=sys.stderr)

    def _line(self, value: dict[str, object]) -> None:
        print(msgspec.json.encode(value).decode(), flush=True)
