"""The ranks of the fake vLLM: processes that compute nothing, and connections between hosts that carry a byte a step.

As in vLLM, a rank imports the extension of its worker, and who waits for a host that is gone waits on.
"""

from __future__ import annotations

import importlib
import multiprocessing
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

_START_SECONDS = 20.0


class MultiprocExecutor:
    def __init__(self, config: Any, monitor_workers: bool = True) -> None:
        parallel = config.parallel_config
        context = multiprocessing.get_context("spawn")
        self.ranks = []
        for _ in range(parallel.ranks // parallel.nnodes if parallel.ranks > 1 else 0):
            ready, tells = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(parallel.extension, tells), daemon=True, name="VllmWorker")
            process.start()
            self.ranks.append(process)
            assert ready.recv() == "ready"
        self.peers = _connected(parallel) if parallel.nnodes > 1 else []

    def shutdown(self) -> None: ...

    def compute(self) -> None:
        """Has every other host take part in a step."""
        for peer in self.peers:
            try:
                peer.sendall(b"x")
                answered = peer.recv(1)
            except OSError:
                answered = b""
            if not answered:
                time.sleep(3600)


def _connected(parallel: Any) -> list[socket.socket]:
    at = (parallel.master_addr, parallel.master_port)
    if parallel.node_rank == 0:
        with socket.create_server(at) as store:
            store.settimeout(_START_SECONDS)
            return [store.accept()[0] for _ in range(parallel.nnodes - 1)]
    began = time.monotonic()
    while True:
        try:
            head = socket.create_connection(at)
            break
        except OSError:
            if time.monotonic() - began > _START_SECONDS:
                raise
            time.sleep(0.02)
    threading.Thread(target=_echo, args=(head,), daemon=True).start()
    return []


def _echo(head: socket.socket) -> None:
    while data := head.recv(1):
        head.sendall(data)


def _rank(extension: str, tells: Connection) -> None:
    module, _, name = extension.rpartition(".")
    assert hasattr(getattr(importlib.import_module(module), name), "prepare_stage")
    tells.send("ready")
    time.sleep(3600)
