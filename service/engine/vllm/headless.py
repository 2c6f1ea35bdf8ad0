"""The vLLM process of a node: `python -m service.engine.vllm.headless FD`. It has ranks of an engine whose head is
elsewhere.

Its parent is `dosirak node`, which tells it in JSON lines what to prepare and when to start. It imports vLLM before it
is told, so that a restart is shorter. It ends with its parent, and its ranks end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn, TypeVar

from service.engine.vllm import ranks
from service.engine.vllm.lines import Go, Lines, Lost, Message, Phase, Prepare, Prepared
from service.engine.vllm.mapping import node_arguments
from service.engine.vllm.releases import own_release, refusal
from service.host import die_with_parent, print_wordless

M = TypeVar("M", bound=Message)


def main(argv: list[str]) -> int:
    """Runs one process and returns its exit code. `argv[1]` is the socket's file descriptor."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = Lines(socket.socket(fileno=int(argv[1])))
    try:
        _serve(parent)
    except EOFError:
        return 0
    except Exception as error:  # the last place that can report the cause
        print_wordless(error)
        with suppress(OSError):
            parent.send(Lost(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _serve(parent: Lines) -> None:
    if refused := refusal(own_release()):
        raise RuntimeError(refused)
    from service.engine.vllm.core import headless
    from service.engine.vllm.weights import written_for_vllm

    prepare = _wait(parent, Prepare)
    order, config = prepare.order, prepare.order.config
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = prepare.threads_bind
    parent.send(Phase("writing weights for vLLM"))
    model_dir = written_for_vllm(config.model_dir, config.precision, config.offload_directory, config.digest)
    parent.send(Prepared())
    port = _wait(parent, Go).port

    def end(cause: str, *, killed: bool = False) -> NoReturn:
        with suppress(OSError):
            parent.send(Lost(cause, killed))
        os._exit(1)

    def began() -> None:
        ranks.watch(end)
        parent.send(Phase("serving"))

    of_node = node_arguments(config.options["nodes"], prepare.rank, prepare.head, port)
    headless(config, model_dir, order.cache_bytes, of_node, began)


def _wait(parent: Lines, kind: type[M]) -> M:
    """Returns the next message, which must be of this kind."""
    while not (messages := parent.read()):
        pass
    [message] = messages
    if not isinstance(message, kind):
        raise ValueError(f"{type(message).__name__} came for {kind.__name__}")
    return message


if __name__ == "__main__":
    os._exit(main(sys.argv))
