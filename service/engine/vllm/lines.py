"""JSON lines tell a node of an engine what to load, and the engine's head how the node is: over TCP, on the trusted
network, and between a node's command and its vLLM process.

    node ── Join ──▶ head        rank, vLLM's release, our release
         ◀─ Order ──             the version, its digest, how the engine is built; or Refused
         ── Phase, Prepared ──▶  the weights are here, in vLLM's form
         ◀─ Go ──                every node is prepared: the port of vLLM's store
         ── Lost ──▶             this node's ranks ended; the end of the connection says the same

A message that is not of these is an error, and nothing in one is code. This module knows messages and sockets; it
starts nothing.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from service.engine.protocol.config import EngineConfig

MAX_LINE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 2, 2, 4
SILENCE_SECONDS: Final = 10
"""After this time without an answer of its kernel, a host counts as gone."""


class Join(msgspec.Struct, frozen=True, tag="join"):
    rank: int
    vllm: str
    software: str


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    phase: str


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """Nothing is missing but the other nodes."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The node's ranks have ended, or it cannot prepare them. `killed` is as in `Report.end`."""

    cause: str
    killed: bool = False


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """`final`: another try would be refused as well."""

    cause: str
    final: bool = True


class Order(msgspec.Struct, frozen=True, tag="order"):
    """What to load. The paths of `config` are the head's; `cache_bytes` are each rank's, 0 as `EngineArgs` has it."""

    reference: str
    config: EngineConfig
    cache_bytes: int


class Go(msgspec.Struct, frozen=True, tag="go"):
    port: int


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """From a node's command to its vLLM process: the order, with the paths of this host."""

    order: Order
    rank: int
    head: str
    threads_bind: str


Message = Join | Phase | Prepared | Lost | Refused | Order | Go | Prepare
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Lines:
    """One end of a connection. Owns the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """Whether this end is not closed."""
        return self.fileno() >= 0

    def send(self, message: Message) -> None:
        """Sends a message. Raises OSError where nobody listens."""
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def read(self) -> list[Message]:
        """Returns the messages that one read completes, maybe none; waits only for bytes. Raises EOFError at the end
        of the connection, and ValueError for what is no message."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError("the connection is closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES:
            raise ValueError(f"a line passes {MAX_LINE_BYTES} bytes")
        return [_decoder.decode(line) for line in lines]

    def close(self) -> None:
        self._socket.close()


def keep_alive(connection: socket.socket) -> None:
    """Has the kernels find out that the other host is gone: the processes may be busy for minutes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", 1000 * SILENCE_SECONDS),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
