"""A node lends its devices to an engine whose head is on another host: `dosirak node --rank K --head ADDRESS`.

    dosirak node ── JSON lines ══ the head's engine process        service/engine/vllm/rendezvous.py
         └── JSON lines ── vLLM process ── its ranks               service/engine/vllm/headless.py

It joins, fetches the version that the head names, and has vLLM serve its ranks. When either end of that is gone, it
ends the other, starts a fresh process, and joins again: the head's engine does the same. It answers no requests.
"""

from __future__ import annotations

import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from msgspec.structs import replace

from models import __version__
from models.errors import NotFound, RepositoryError
from models.manifest import Manifest
from models.repository.disk.leases import Lease
from models.repository.repository import Repository
from service.addresses import Place, addresses_of
from service.engine.kinds.environment import threads_bind, vllm_environment
from service.engine.vllm.lines import (
    Go,
    Join,
    Lines,
    Lost,
    Message,
    Order,
    Phase,
    Prepare,
    Prepared,
    Refused,
    keep_alive,
)
from service.environment import engine_environment
from service.errors import Conflict, DosirakError, Unavailable
from service.host import usable_cpus
from service.settings import Settings
from service.storage.records import open_repository

HEADLESS: Final = "service.engine.vllm.headless"
_CONNECT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 1.0
_FAILED_PAUSE_SECONDS: Final = 5.0
M = TypeVar("M", bound=Message)


class Gone(Exception):
    """This turn is over, and another one may begin: the text says why."""


class Node:
    """One node. One thread uses it; its vLLM process ends with that thread."""

    def __init__(self, settings: Settings, rank: int, head: str, place: Place, say: Callable[[str], None]):
        """`head` is a name or address of the head in the trusted network, `place` this host's own. `say` gets a
        sentence for each change."""
        self._settings = settings
        self._rank = rank
        self._head = head
        self._place = place
        self._say = say
        self._said = ""
        self._head_address = ""
        self._lease: Lease | None = None

    def run(self, python: Path, release: str) -> NoReturn:
        """Serves one engine after the other, with the `release` of vLLM that the interpreter has. Raises Conflict where
        the head says that this node can never join."""
        while True:
            with self._process(python) as process:
                try:
                    self._serve(process, release)
                except Gone as gone:
                    self._tell(f"{gone}; joining again")
                finally:
                    self._release()
            time.sleep(_PAUSE_SECONDS)

    def _serve(self, process: Lines, release: str) -> NoReturn:
        with _closing(self._joined(release)) as head:
            order = self._awaited(head, Order, head, process)
            self._tell(f"joined {self._head} as rank {self._rank}: {order.reference}")
            self._prepare(head, process, order)
            while True:
                for source, message in self._next(head, process):
                    self._pass_on(source is head, message, head, process)

    def _prepare(self, head: Lines, process: Lines, order: Order) -> None:
        """Brings the version, and tells the vLLM process about it."""
        config = order.config
        try:
            head.send(Phase("fetching"))
            repository = open_repository(self._settings)
            manifest = _served_version(repository, order)
            self._lease = repository.lease(manifest)
            repository.fetch(manifest)
            head.send(Phase("checking files"))
            repository.verify(manifest)
        except (RepositoryError, DosirakError) as error:
            self._fail(head, str(error))
        except OSError as error:
            self._fail(head, f"its files could not be read: {error}")
        paths = {"model_dir": str(repository.path(manifest)), "offload_directory": str(self._settings.data_dir)}
        ranks = config.options["tensor_parallel"] * config.options["pipeline_parallel"] // config.options["nodes"]
        bind = threads_bind(usable_cpus()[: self._settings.threads or None], ranks)
        _send(process, Prepare(replace(order, config=replace(config, **paths)), self._rank, self._head_address, bind))

    def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def _fail(self, head: Lines, cause: str) -> NoReturn:
        with suppress(OSError):
            head.send(Lost(cause))
        time.sleep(_FAILED_PAUSE_SECONDS)
        raise Gone(cause)

    def _pass_on(self, from_head: bool, message: Message, head: Lines, process: Lines) -> None:
        match message:
            case Go() if from_head:
                self._tell("starting")
                _send(process, message)
            case Phase(phase) if not from_head:
                self._tell(phase)
                _send(head, message)
            case Prepared() if not from_head:
                self._tell("prepared; waiting for the other nodes")
                _send(head, message)
            case Lost(cause) if not from_head:
                with suppress(OSError):
                    head.send(message)
                raise Gone(cause)
            case Refused(cause):
                raise Gone(cause)
            case _:
                raise Gone(f"{type(message).__name__} came from the {'head' if from_head else 'vLLM process'}")

    def _joined(self, release: str) -> Lines:
        """Returns a connection to the head that knows who this is; tries until there is one."""
        while True:
            try:
                connection = self._connected()
            except OSError as error:
                self._tell(f"waiting for an engine at {self._head}:{self._settings.node_port} ({_reason(error)})")
                time.sleep(_PAUSE_SECONDS)
                continue
            keep_alive(connection)
            lines = Lines(connection)
            _send(lines, Join(self._rank, release, __version__))
            return lines

    def _connected(self) -> socket.socket:
        """Raises OSError, and Conflict where the head's name leads out of the trusted network."""
        port, ours = self._settings.node_port, self._place.address
        for address in addresses_of(self._head, self._settings.trusted_network or self._place.address):
            if (":" in address) == (":" in ours):
                connection = socket.create_connection((address, port), _CONNECT_SECONDS, (ours, 0))
                connection.settimeout(None)
                self._head_address = address
                return connection
        raise Conflict(f"{self._head} has no address of the kind of this host's {ours}: name another one")

    def _awaited(self, source: Lines, kind: type[M], head: Lines, process: Lines) -> M:
        while True:
            for sender, message in self._next(head, process):
                if isinstance(message, Refused):
                    if message.final:
                        raise Conflict(message.cause)
                    raise Gone(message.cause)
                if isinstance(message, Lost):
                    self._fail(head, message.cause)
                if sender is source and isinstance(message, kind):
                    return message

    def _next(self, head: Lines, process: Lines) -> list[tuple[Lines, Message]]:
        """Waits for news of the head or of the vLLM process. Raises Gone where one of them has ended."""
        with selectors.DefaultSelector() as selector:
            for each in (head, process):
                selector.register(each, selectors.EVENT_READ)
            ready = [each for each in (head, process) if any(key.fileobj is each for key, _ in selector.select())]
        news = list[tuple[Lines, Message]]()
        for each in ready:
            name = "the head" if each is head else "the vLLM process"
            try:
                news += [(each, message) for message in each.read()]
            except EOFError:
                if each is process:
                    with suppress(OSError):
                        head.send(Lost("its vLLM process ended", killed=True))
                raise Gone(f"{name} is gone") from None
            except (OSError, ValueError) as error:
                raise Gone(f"{name} said what is no message ({error})") from None
        return news

    @contextmanager
    def _process(self, python: Path) -> Iterator[Lines]:
        """Gives a vLLM process that imports vLLM and waits; kills it at the end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        cores = usable_cpus()
        env = vllm_environment(engine_environment(), self._settings.data_dir, 1, cores, self._place)
        command = (str(python), "-m", HEADLESS, str(theirs.fileno()))
        with theirs, ours:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=env)
            theirs.close()
            try:
                yield Lines(ours)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def _tell(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)


def _served_version(repository: Repository, order: Order) -> Manifest:
    """Returns the version that the head serves. Raises Conflict for another content, and what the repository does."""
    try:
        manifest = repository.resolve(order.reference)
    except NotFound:
        raise Unavailable(
            f"there is no {order.reference} here: set DOSIRAK_STORE_URL to the head's store, or put the version into "
            "this data directory"
        ) from None
    if manifest.digest != order.config.digest:
        raise Conflict(f"{order.reference} is {manifest.digest[:12]} here and {order.config.digest[:12]} at the head")
    return manifest


@contextmanager
def _closing(lines: Lines) -> Iterator[Lines]:
    try:
        yield lines
    finally:
        lines.close()


def _send(lines: Lines, message: Message) -> None:
    try:
        lines.send(message)
    except OSError as error:
        raise Gone(f"the connection is closed ({_reason(error)})") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
