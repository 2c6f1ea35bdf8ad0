"""Each check looks for one thing that would stop a server's start, before anything is started. It knows no server and
changes nothing.

A check that fails raises CannotStart: one sentence that says what is wrong, and then what to do.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from models.errors import RepositoryError
from models.manifest import ModelReference
from models.repository import Repository
from models.starter import DEMO, WEIGHTS, demo_is_wanted
from service.errors import DosirakError
from service.settings import Settings

PORTS_TRIED: Final = 20
FIRST_UNPRIVILEGED: Final = 1024
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
ELSEWHERE: Final = "or choose another directory with DOSIRAK_DATA_DIR"
NEEDED_FOR_DEMO: Final = 3
"""Bytes that the demo model's two versions and their load take, as a multiple of its weights' bytes."""
LITTLE_SPACE: Final = 64 * 1024 * 1024
"""Less free disk than this is worth a warning: sessions, reports and imports are refused when it is used up."""


class CannotStart(DosirakError):
    """The server cannot start; the message says what to do."""


def listening_address(settings: Settings, url: str) -> str:
    """Returns the IP address to listen on; `url` is where the server would be reached. Raises CannotStart where this
    machine cannot listen there."""
    host, port = settings.host, settings.port
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError:
        raise CannotStart(f"{host} is no address: set DOSIRAK_HOST to an IP address of this machine") from None
    try:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()
    except OSError as error:
        raise CannotStart(_why_not_listening(str(where[0]), port, family, error, url)) from None
    return str(where[0])


def _why_not_listening(address: str, port: int, family: socket.AddressFamily, error: OSError, url: str) -> str:
    if error.errno == errno.EADDRINUSE:
        free = _free_port(address, port, family)
        another = f", or choose another port, as in DOSIRAK_PORT={free}" if free else ""
        return f"port {port} is taken by {_taker(url)}: end it{another}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is no address of this machine: set DOSIRAK_HOST to one of its own, as in 127.0.0.1"
    if error.errno in (errno.EACCES, errno.EPERM) and port < FIRST_UNPRIVILEGED:
        return f"port {port} is for the system's administrator: choose one from {FIRST_UNPRIVILEGED} on (DOSIRAK_PORT)"
    return f"{address} port {port} cannot be listened on ({error.strerror}): choose others (DOSIRAK_HOST, DOSIRAK_PORT)"


def _free_port(address: str, taken: int, family: socket.AddressFamily) -> int | None:
    for port in range(taken + 1, min(taken + 1 + PORTS_TRIED, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if probe.connect_ex((address, port)) != 0:
                return port
    return None


def _taker(url: str) -> str:
    """Names what listens there: a Dosirak without a key says so itself."""
    try:
        named = httpx.get(f"{url}/", timeout=1).json()["name"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return "another program"
    return "a Dosirak that already serves there" if named == "Dosirak" else "another program"


def check_directory(directory: Path) -> None:
    """Makes the data directory if it is not there, and writes to it. Raises CannotStart where that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(4096))
            probe.flush()
        foreign = [each for each in sorted(directory.iterdir()) if not _usable(each)]
    except OSError as error:
        raise CannotStart(_why_not_written(directory, error)) from None
    if foreign:
        raise CannotStart(
            f"{foreign[0]} belongs to {_owner(foreign[0])} and cannot be written: give it to {_user(os.geteuid())} "
            f"(chown -R), {ELSEWHERE}"
        )


def _usable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _why_not_written(directory: Path, error: OSError) -> str:
    if error.errno in FULL:
        return f"the disk of {directory} is full: make room, {ELSEWHERE}"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"the data directory {directory} is, or lies in, a file: remove the file, {ELSEWHERE}"
    if error.errno == errno.EROFS:
        return f"the data directory {directory} is on a read-only file system: mount it for writing, {ELSEWHERE}"
    if error.errno in (errno.EACCES, errno.EPERM):
        there = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
        return (
            f"{there} belongs to {_owner(there)} and cannot be written: give it to {_user(os.geteuid())} (chown -R), "
            f"{ELSEWHERE}"
        )
    return f"the data directory {directory} cannot be written ({error.strerror}): mend that, {ELSEWHERE}"


def _owner(path: Path) -> str:
    return _user(path.lstat().st_uid)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def check_space(repository: Repository, directory: Path) -> str | None:
    """Returns a warning where little disk is free. Raises CannotStart where the demo model does not fit."""
    free = shutil.disk_usage(directory).free
    needed = (
        NEEDED_FOR_DEMO * sum(file.stat().st_size for file in WEIGHTS.iterdir()) if demo_is_wanted(repository) else 0
    )
    if free < needed:
        raise CannotStart(
            f"the disk of {directory} has {_mb(free)} free and the demo model needs {_mb(needed)}: make room, "
            f"{ELSEWHERE}"
        )
    if free < LITTLE_SPACE:
        return f"the disk of {directory} has only {_mb(free)} free: sessions and imports are refused when it is full"
    return None


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def check_model(repository: Repository, reference: str) -> None:
    """Raises CannotStart where the default model is not in the repository, nor the demo model that the server publishes
    there at its start."""
    try:
        if demo_is_wanted(repository) and ModelReference.parse(reference).name == DEMO:
            return
        repository.resolve(reference)
    except RepositoryError as error:
        there = repository.models()
        chosen = f", or set DOSIRAK_DEFAULT_MODEL to one of: {', '.join(there)}" if there else ""
        raise CannotStart(
            f"the default model cannot be served: {error}. Import it, as in dosirak model import ORG/NAME NAME{chosen}"
        ) from None


@contextmanager
def marked(directory: Path) -> Iterator[str | None]:
    """Marks the data directory as used while inside. Yields a warning where another server has marked it."""
    import fcntl

    with (directory / "serve.lock").open("a+") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            mark.seek(0)
            yield (
                f"another server (process {mark.read().strip() or 'unknown'}) uses {directory} too: turns of one "
                "session at both would clash, so give each server a DOSIRAK_DATA_DIR of its own"
            )
            return
        mark.truncate(0)
        mark.write(str(os.getpid()))
        mark.flush()
        yield None
