"""The rendezvous is where the nodes of an engine come: it tells them what to load, and ends the engine when one of them
is gone.

It listens at one address of the trusted network, in the engine's own process: who serves that process serves the
nodes, and with it they end. It knows no vLLM.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from service.addresses import lies_in
from service.engine.process.heartbeat import Report
from service.engine.protocol.config import EngineConfig, NodesConfig
from service.engine.vllm.lines import Go, Join, Lines, Lost, Message, Order, Phase, Prepared, Refused, keep_alive
from service.engine.vllm.mapping import node_arguments
from service.engine.vllm.releases import own_release

_LOOK_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 10.0
_BACKLOG: Final = 128
End = Callable[[str, bool], object]


def gathered(config: EngineConfig, cache_bytes: int, report: Report) -> dict[str, Any]:
    """Waits until every node is prepared, and returns vLLM's arguments for the head. From then on `report` ends this
    process when a node is gone. Raises RuntimeError, with who did not come or what a node lacks, and EOFError once
    nobody wants this engine."""
    nodes = config.nodes
    if nodes is None:
        return {}
    bare = replace(config, model_dir="", offload_directory="", findings="", peaks="", adapters=(), nodes=None)
    rendezvous = Rendezvous(nodes, config.options["nodes"], Order(nodes.reference, bare, cache_bytes))
    rendezvous.gather(report)
    rendezvous.watch(lambda cause, killed: report.end(cause, killed=killed))
    port = rendezvous.go()
    return node_arguments(config.options["nodes"], 0, nodes.address, port)


@dataclass(slots=True, eq=False)
class _Node:
    """A connection; a node as soon as it has said its rank."""

    lines: Lines
    address: str
    since: float = field(default_factory=time.monotonic)
    rank: int = 0
    phase: str = "joining"
    is_prepared: bool = False

    def __str__(self) -> str:
        return f"the node of rank {self.rank} ({self.address})"


class Rendezvous:
    """One thread at a time uses it: that of `gather` and `go`, then that of `watch`."""

    def __init__(self, config: NodesConfig, count: int, order: Order) -> None:
        """Listens. Raises RuntimeError where the port is taken."""
        self._config = config
        self._ranks = range(1, count)
        self._order = order
        self._nodes: dict[int, _Node] = {}
        self._strangers: list[_Node] = []
        self._refused: dict[str, str] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = _listening(config)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._has_begun = False
        self._end: End = _raise

    def gather(self, report: Callable[[str, float], None]) -> None:
        """Returns when every node is prepared. Raises RuntimeError and EOFError as `gathered` does."""
        limit = time.monotonic() + self._config.wait_seconds
        while not all(rank in self._nodes and self._nodes[rank].is_prepared for rank in self._ranks):
            report(*self._progress())
            self._turn()
            if self._missing and time.monotonic() > limit:
                raise RuntimeError(self._who_did_not_come())

    def go(self) -> int:
        """Tells the nodes to start, and returns the port of vLLM's store."""
        self._has_begun = True
        with socket.create_server((self._config.address, 0), family=_family(self._config.address)) as free:
            port = int(free.getsockname()[1])
        for node in list(self._nodes.values()):
            try:
                node.lines.send(Go(port))
            except OSError:
                self._gone(node, "its connection is closed")
        return port

    def watch(self, end: End) -> None:
        """Calls `end` with the cause, and whether it came from outside, when a node is gone."""
        self._has_begun, self._end = True, end
        threading.Thread(target=self._watch, name="nodes", daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._turn()

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self._nodes]

    def _progress(self) -> tuple[str, float]:
        prepared = sum(node.is_prepared for node in self._nodes.values())
        if missing := self._missing:
            return f"waiting for the nodes of rank {_listed(missing)}", prepared / len(self._ranks)
        busy = next(each for each in self._nodes.values() if not each.is_prepared)
        return f"{busy}: {busy.phase}", prepared / len(self._ranks)

    def _who_did_not_come(self) -> str:
        config, missing = self._config, self._missing
        refused = "".join(f"; {address} was refused: {cause}" for address, cause in self._refused.items())
        return (
            f"the nodes of rank {_listed(missing)} did not come within {config.wait_seconds:g} s "
            f"(DOSIRAK_NODE_WAIT_SECONDS): run `dosirak node --rank {missing[0]} --head {config.address}` on its "
            f"host{refused}"
        )

    def _turn(self) -> None:
        """Takes what has come, and waits a moment for it."""
        for key, _ in self._selector.select(_LOOK_SECONDS):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data)
        for node in [each for each in self._strangers if time.monotonic() - each.since > _JOIN_SECONDS]:
            self._drop(node)

    def _accept(self) -> None:
        connection, peer = self._listener.accept()
        keep_alive(connection)
        connection.settimeout(_JOIN_SECONDS)
        node = _Node(Lines(connection), str(peer[0]))
        if len(self._strangers) >= _BACKLOG:
            self._refuse(node, "too many connections", final=False)
        else:
            self._strangers.append(node)
            self._selector.register(connection, selectors.EVENT_READ, node)

    def _read(self, node: _Node) -> None:
        try:
            messages = node.lines.read()  # also of one that is refused: unread bytes would cut off the answer
            if not lies_in(node.address, self._config.network):
                self._refuse(node, f"{node.address} does not lie in DOSIRAK_TRUSTED_NETWORK={self._config.network}")
                return
            for message in messages:
                if node.lines.is_open:  # what lies behind a refusal is not read
                    self._take(node, message)
        except EOFError:
            self._gone(node, "its connection is closed")
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self._gone(node, f"it said what is no message ({error})")

    def _take(self, node: _Node, message: Message) -> None:
        match message:
            case Join() if not node.rank:
                self._join(node, message)
            case Phase(phase) if node.rank:
                node.phase = phase
            case Prepared() if node.rank:
                node.is_prepared = True
            case Lost(cause, killed) if node.rank:
                self._lost(node, cause, killed)
            case _:
                raise ValueError(f"{type(message).__name__} is not for the head now")

    def _join(self, node: _Node, join: Join) -> None:
        ours = (own_release(), self._config.software)
        if (join.vllm, join.software) != ours:
            cause = f"the head has vLLM {ours[0]} and dosirak {ours[1]}, and this node vLLM {join.vllm} and dosirak "
            self._refuse(node, f"{cause}{join.software}: install the same releases on both")
        elif join.rank not in self._ranks:
            self._refuse(node, f"there is no rank {join.rank}: the nodes of this engine are 1 to {self._ranks[-1]}")
        elif join.rank in self._nodes:
            address = self._nodes[join.rank].address
            self._refuse(node, f"the node of rank {join.rank} is here already, from {address}", final=False)
        else:
            self._strangers.remove(node)
            node.rank = join.rank
            self._nodes[join.rank] = node
            node.lines.send(self._order)

    def _refuse(self, node: _Node, cause: str, *, final: bool = True) -> None:
        self._refused[node.address] = cause
        with suppress(OSError):  # it is gone already
            node.lines.send(Refused(cause, final))
        self._drop(node)

    def _lost(self, node: _Node, cause: str, killed: bool) -> None:
        if not self._has_begun:
            raise RuntimeError(f"{node} cannot serve {self._order.reference}: {cause}")
        self._end(f"{node} is lost: {cause}", killed)

    def _gone(self, node: _Node, cause: str) -> None:
        """Before the ranks run, a node may come again."""
        self._drop(node)
        if node.rank and self._has_begun:
            self._end(f"{node} is gone: {cause}", True)

    def _drop(self, node: _Node) -> None:
        if node in self._strangers:
            self._strangers.remove(node)
        if self._nodes.get(node.rank) is node:
            del self._nodes[node.rank]
        if node.lines.fileno() in self._selector.get_map():
            self._selector.unregister(node.lines.fileno())
        node.lines.close()


def _raise(cause: str, _killed: bool) -> None:
    raise RuntimeError(cause)


def _listening(config: NodesConfig) -> socket.socket:
    try:
        return socket.create_server((config.address, config.port), family=_family(config.address), backlog=_BACKLOG)
    except OSError as error:
        raise RuntimeError(
            f"the nodes cannot join at {config.address}:{config.port} ({error.strerror}): one engine of several nodes "
            "runs on a host at a time; unload the other one, or set DOSIRAK_NODE_PORT"
        ) from None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
