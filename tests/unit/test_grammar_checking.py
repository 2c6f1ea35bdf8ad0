"""The checker tries each grammar once: owners take turns, and a trial that was disturbed says nothing of a grammar."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.errors import Overloaded
from service.text.grammars.checking import GrammarChecker
from service.text.grammars.grammar import Grammar


@pytest.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    made = GrammarChecker()
    await made.check(choice("warm"))
    yield made
    await made.close()


def choice(text: str) -> Grammar:
    return Grammar.of_choice([text], "choice")


@contextmanager
def killing(checker: GrammarChecker, count: int) -> Iterator[None]:
    """Ends the processes of the next `count` trials, as who looks for memory does."""
    assert checker._process is not None
    first, over = checker._process.pid, threading.Event()

    def run() -> None:
        for _ in range(count):
            while not over.is_set():
                now = checker._process.pid if checker._process else first
                try:
                    children = Path(f"/proc/{now}/task/{now}/children").read_text().split()
                    if children:
                        os.kill(int(children[0]), signal.SIGKILL)
                        break
                except OSError:
                    continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


async def test_a_trial_that_was_killed_is_no_verdict(checker: GrammarChecker) -> None:
    properties = {f"p{n}": {"type": "string", "maxLength": 3} for n in range(60)}
    schema = Grammar.of_json_schema({"type": "object", "properties": properties}, "response_format")
    with killing(checker, 1):
        await checker.check(schema)


async def test_an_owner_with_many_grammars_leaves_the_others_their_turn(checker: GrammarChecker) -> None:
    order: list[str] = []

    async def check(owner: str, text: str) -> None:
        await checker.check(choice(text), owner)
        order.append(owner)

    many = [asyncio.create_task(check("many", f"m{n}")) for n in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="32 grammars wait"):
        await checker.check(choice("one more"), "many")
    await check("one", "o")
    assert len(order) <= 4, "the turn of an owner with one"
    await asyncio.gather(*many)
    await check("many", "one more")
