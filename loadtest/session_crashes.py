"""This test kills writers under load with `kill -9` and checks that every acknowledged turn is there.

Each process has a few writers. They append numbered turns to shared sessions, each turn with its own key, and note
every acknowledged turn in a file. The processes are killed at random. Then the checker reads the sessions as lists of
turns.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from service.storage.sessions import (
    Answered,
    Done,
    Finished,
    Fresh,
    NewMessage,
    NewReply,
    NewTurn,
    SessionStore,
    StoredMessage,
)

OWNER = "writers"
WRITERS, PROCESSES, SESSIONS = 2, 2, 2
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """Turn number `n` of a writer, in a session."""

    session: str
    writer: str
    n: int

    @property
    def said(self) -> str:
        return f"{self.writer} {self.n}"

    @property
    def reply(self) -> str:
        """Long enough to span pages, and different for every turn."""
        return f"{self.said}: " + f"{self.n * 7919 % 10007} " * (self.n % 7 * 100 + 1)


def check(acknowledged: list[Written], stored: dict[str, list[StoredMessage]]) -> list[str]:
    """Returns the mistakes in the stored lists: turns that are lost, torn, doubled, out of order or never written."""
    wrong: list[str] = []
    found: list[Written] = []
    for session, messages in stored.items():
        turns, torn = _turns(session, messages)
        wrong += torn
        found += turns
        last: dict[str, int] = {}
        for turn in turns:
            if turn.n <= last.get(turn.writer, -1):
                wrong.append(f"out of order: {turn.said}")
            last[turn.writer] = turn.n
    there = Counter(found)
    wrong += [f"twice: {turn.said}" for turn, times in there.items() if times > 1]
    wrong += [f"lost: {turn.said}" for turn in acknowledged if turn not in there]
    open_: dict[str, list[Written]] = defaultdict(list)
    for turn in there.keys() - set(acknowledged):
        open_[turn.writer].append(turn)
    return wrong + [f"never written: {writer}" for writer, turns in open_.items() if len(turns) > 1]


def _turns(session: str, messages: list[StoredMessage]) -> tuple[list[Written], list[str]]:
    turns, torn = [], []
    position = 0
    while position < len(messages):
        asked, *rest = messages[position : position + 2]
        writer, _, n = asked.content.partition(" ")
        turn = Written(session, writer, int(n)) if asked.role == "user" and n.isdecimal() else None
        if turn is None or not rest or rest[0].content != turn.reply or rest[0].answered != _answered(turn):
            torn.append(f"torn: message {position} of {session}")
            position += 1
        else:
            turns.append(turn)
            position += 2
    return turns, torn


async def run(url: str, directory: Path, kills: int, seed: int = 0) -> list[str]:
    """Kills `kills` processes while they write. Returns the checker's findings after every round and in the end."""
    draw = random.Random(seed)
    store = await SessionStore.open(url)
    sessions = [(await store.create(OWNER)).id for _ in range(SESSIONS)]
    acknowledged: list[Written] = []
    for number in range(0, kills, PROCESSES):
        logs = [directory / f"acknowledged-{number + each}" for each in range(PROCESSES)]
        await asyncio.to_thread(_round, url, sessions, logs, draw)
        acknowledged += [turn for log in logs for turn in _noted(log)]
        wrong = await inspect(store, sessions, acknowledged)
        if wrong:
            return wrong
    await store.close()
    return [] if len(acknowledged) > kills else ["nothing was written"]


async def inspect(store: SessionStore, sessions: list[str], acknowledged: list[Written]) -> list[str]:
    stored, wrong = {}, []
    for id in sessions:
        session, messages = await store.get(OWNER, id), await all_messages(store, id)
        stored[id] = messages
        if (session.message_count, session.revision) != (len(messages), 1 + len(messages) // 2):
            wrong.append(f"miscounted: {session}")
    last: dict[str, int] = {}
    for messages_ in stored.values():
        for writer, number in (message.content.split(" ") for message in messages_ if message.role == "user"):
            last[writer] = max(last.get(writer, -1), int(number))
    for writer, n in list(last.items())[-WRITERS * PROCESSES :]:
        here = await store.idempotency.begin(OWNER, f"{writer} {n}", "hash")
        after = await store.idempotency.begin(OWNER, f"{writer} {n + 1}", "hash")
        if here != Finished(f"{writer} {n}".encode()) or isinstance(after, Finished):
            wrong.append(f"turn without its answer, or the other way round: {writer} {n}")
    return wrong + check(acknowledged, stored)


async def all_messages(store: SessionStore, id: str) -> list[StoredMessage]:
    """Page by page."""
    page = await store.messages(OWNER, id, limit=100)
    found = list(page.data)
    while page.next_cursor is not None:
        page = await store.messages(OWNER, id, cursor=page.next_cursor, limit=100)
        found += page.data
    return found


def _round(url: str, sessions: list[str], logs: list[Path], draw: random.Random) -> None:
    """Starts the processes and kills each at its own time, after all have written at least one turn."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loadtest.session_crashes"])
    processes = [context.Process(target=work, args=(url, sessions, str(log))) for log in logs]
    for process in processes:
        process.start()
    deadline = time.monotonic() + _START_SECONDS
    while not all(log.exists() and log.stat().st_size for log in logs):
        assert time.monotonic() < deadline and all(process.is_alive() for process in processes), "no writer writes"
        time.sleep(0.005)
    for process in processes:
        time.sleep(draw.random() * 0.15)
        process.kill()
    for process in processes:
        process.join()


def work(url: str, sessions: list[str], log: str) -> None:
    """A process of writers; ends when it is killed."""
    asyncio.run(_write_all(url, sessions, Path(log)))


async def _write_all(url: str, sessions: list[str], log: Path) -> None:
    store = await SessionStore.open(url, patience=30)
    noted = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    names = [f"{log.name}.{each}" for each in range(WRITERS)]
    await asyncio.gather(*(_write(store, sessions, name, noted) for name in names))


async def _write(store: SessionStore, sessions: list[str], writer: str, noted: int) -> None:
    n = 0
    while True:
        turn = Written(sessions[n % len(sessions)], writer, n)
        begun = await store.idempotency.begin(OWNER, turn.said, "hash")
        assert isinstance(begun, Fresh)
        new = NewTurn((NewMessage(turn.said),), NewReply(turn.reply, _answered(turn)))
        await store.append_turn(OWNER, turn.session, new, done=Done(begun.claim, turn.said.encode()))
        os.write(noted, f"{turn.session} {turn.writer} {turn.n}\n".encode())
        n += 1


def _answered(turn: Written) -> Answered:
    return Answered({"used": turn.n}, "demo:2", "2", "0123abcd", {"total_tokens": turn.n}, "stop")


def _noted(log: Path) -> list[Written]:
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    return [Written(session, writer, int(n)) for session, writer, n in lines]
