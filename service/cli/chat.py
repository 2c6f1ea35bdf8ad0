"""This module runs `dosirak chat` line by line: a line with a slash goes to `commands`, every other line to the model.
It reads files, keys and pipes; `printing` formats the output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from rich.console import Console

from service.cli.client import Client, Fields
from service.cli.commands import COMMANDS, Conversation, unknown
from service.cli.printing import SPEAKERS, JsonLines, Output, Plain, Terminal
from service.cli.terminal import standard_input
from service.cli.wire import Session
from service.errors import DosirakError

SHOWN_AT_START: Final = 4
INTERRUPTED: Final = 130
"""The exit status of a program that Ctrl-C ended."""


def take(chat: Conversation, line: str) -> bool:
    """Takes one typed line. After a failure it prints the error, returns False, and the chat goes on."""
    name, _, rest = line.strip().partition(" ")
    try:
        if name.startswith("/") and not name.startswith("//"):
            command = COMMANDS.get(name.lower())
            command(chat, rest.strip()) if command else unknown(chat, name)
        elif name:
            said = line.strip().removeprefix("/") if name.startswith("//") else line.strip()
            chat.hear(chat.client.say(chat.turn(said)))
    except DosirakError as error:
        chat.output.failed(error)
        return False
    return True


def run(
    client: Client, session: str | None, settings: Fields, parameters: Fields, console: Console, as_json: bool
) -> int:
    """Runs the whole chat; returns the exit status. Raises InvalidRequest where there is no standard input."""
    interactive = standard_input().isatty() and not as_json
    output: Output = Terminal(console) if interactive else JsonLines() if as_json else Plain()
    try:
        chat = Conversation(client, output, _begin(client, session, settings), settings, parameters)
        chat.enter(chat.session)
    except DosirakError as error:
        output.failed(error)
        return 1
    if interactive:
        _greet(chat)
    well = True
    try:
        for line in _typed() if interactive else _piped():
            well = take(chat, line) and well
            if chat.over:
                break
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0 if well or interactive else 1


def _begin(client: Client, session: str | None, settings: Fields) -> Session:
    if session is None:
        return client.create(settings)
    return client.change(session, settings) if settings else client.session(session)


def _greet(chat: Conversation) -> None:
    session = chat.session
    if session.message_count:
        shown = chat.messages()[-SHOWN_AT_START:]
        chat.output.say(f"{session.id}: {session.message_count:,} messages, the last {len(shown)}:")
        chat.output.history(shown, session.message_count - len(shown) + 1, chat.receipt)
    chat.output.say(f"{chat.client.url} · /help says what there is · Ctrl-D leaves\n")


def _typed() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401  gives `input` its line editing

    while True:
        try:
            yield well_formed(input(SPEAKERS["user"]))
        except (EOFError, KeyboardInterrupt):
            print()
            return


def _piped() -> Iterator[str]:
    for line in sys.stdin:
        yield well_formed(line)


def well_formed(text: str) -> str:
    """Replaces bytes that are no UTF-8 with U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
