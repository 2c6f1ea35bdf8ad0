"""Chats of a day: when they begin, how many turns they have, how long questions, answers and pauses are.

Means are those that LMSYS-Chat-1M reports of a million chats with 25 models (arXiv 2309.11998, table 1): 2.0 turns,
69.5 tokens of a question, 214.5 of an answer. The spread is ours: turns geometric, lengths log-normal. The rate follows
the hour as a sine does. The same seed makes the same chats.

A balancer chooses an instance for each turn: at random, the least busy, by the chat's hash, by known beginnings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from math import log, pi, sin
from random import Random

from loadtest.fleet.instance import VOCABULARY, Instance
from service.engine.client.prefix_router import PrefixRouter
from service.engine.protocol.messages import Request

POLICIES = ("random", "load", "hash", "prefix")


@dataclass(frozen=True, slots=True)
class Habits:
    """What chats are like, in tokens and seconds."""

    turns: float = 2.0
    question: float = 69.5
    answer: float = 214.5
    spread: float = 0.9
    pause: float = 30.0
    system: int = 48
    """A beginning that all chats share."""
    swing: float = 0.6
    """How far the busiest second is over the day's mean, as a share of it."""
    vocabulary: int = VOCABULARY
    hears: bool = True
    """Whether a chat goes on with the answer's own tokens, which the cache has; else with as many others."""


@dataclass(slots=True)
class Chat:
    """One chat. `tokens` are what the model has seen of it, the answers included."""

    number: int
    turns: int
    draw: Random
    habits: Habits
    tokens: list[int] = field(default_factory=list)

    def ask(self, window: int) -> tuple[tuple[int, ...], int]:
        """Returns the next turn's prompt and the length of its answer. A chat that outgrows the window goes on with the
        newest half of it, as the policy `window` does with whole turns."""
        question = drawn(self.draw, self.habits.question, self.habits.spread, window // 4)
        answer = drawn(self.draw, self.habits.answer, self.habits.spread, window // 4)
        if self.habits.system + len(self.tokens) + question + answer > window:
            self.tokens = self.tokens[-window // 4 :]
        self.tokens += self._drawn(question)
        self.turns -= 1
        return (*range(1, self.habits.system + 1), *self.tokens), answer

    def hear(self, token_ids: Sequence[int]) -> None:
        self.tokens += token_ids if self.habits.hears else self._drawn(len(token_ids))

    def pause(self) -> float:
        return self.draw.expovariate(1 / self.habits.pause)

    def _drawn(self, count: int) -> list[int]:
        most = self.habits.vocabulary
        return [self.draw.randrange(most // 2, most) for _ in range(count)]


def drawn(draw: Random, mean: float, spread: float, most: int) -> int:
    """Returns a log-normal length of that mean, within 1 and `most`."""
    return min(most, max(1, round(draw.lognormvariate(log(mean) - spread**2 / 2, spread))))


def arrivals(draw: Random, turns_a_second: float, seconds: float, habits: Habits) -> Iterator[tuple[float, Chat]]:
    """Yields when each chat of a day of `seconds` begins, and the chat. `turns_a_second` is the day's mean."""
    rate = turns_a_second / habits.turns
    peak, now, number = rate * (1 + habits.swing), 0.0, 0
    while (now := now + draw.expovariate(peak)) < seconds:
        if draw.random() * peak <= rate * (1 - habits.swing * sin(2 * pi * now / seconds + pi / 2)):
            number += 1
            yield now, Chat(number, geometric(draw, habits.turns), Random(draw.getrandbits(64)), habits)


def geometric(draw: Random, mean: float) -> int:
    """Returns at least 1."""
    count = 1
    while draw.random() > 1 / mean:
        count += 1
    return count


Choose = Callable[[Chat, Request, Sequence[Instance]], Instance]


def policy(name: str, draw: Random) -> Choose:
    """Returns a policy without memory of other runs."""
    policies: dict[str, Choose] = {
        "random": _at_random(draw),
        "load": _least_busy,
        "hash": _by_hash,
        "prefix": _by_prefix(),
    }
    return policies[name]


def _at_random(draw: Random) -> Choose:
    return lambda chat, request, instances: draw.choice(instances)


def _least_busy(chat: Chat, request: Request, instances: Sequence[Instance]) -> Instance:
    return min(instances, key=lambda each: each.in_flight)


def _by_hash(chat: Chat, request: Request, instances: Sequence[Instance]) -> Instance:
    """As nginx's consistent hash of X-Session-Id: of one instance less, only its own chats move."""
    return max(instances, key=lambda each: weight(chat.number, each.name))


@cache
def weight(chat: int, instance: int) -> bytes:
    """Returns what orders the instances of a chat; the one with the most gets its turns."""
    return sha256(f"{chat}:{instance}".encode()).digest()


def _by_prefix() -> Choose:
    """As the replicas of an instance do, by the router that they use."""
    router = PrefixRouter[Instance]()
    return lambda chat, request, instances: router.place(request, instances)
