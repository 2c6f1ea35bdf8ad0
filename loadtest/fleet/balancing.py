"""How a balancer chooses an instance for a turn: at random, the least busy, by the chat's hash, by known beginnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from random import Random

from loadtest.fleet.chats import Chat
from loadtest.fleet.instance import Instance
from service.engine.client.replicas import PrefixRouter
from service.engine.protocol.messages import Request

Choose = Callable[[Chat, Request, Sequence[Instance]], Instance]
POLICIES = ("random", "load", "hash", "prefix")


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
