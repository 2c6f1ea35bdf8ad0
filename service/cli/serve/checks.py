"""Each check looks for one thing that would stop a server's start, before anything is started; and the address of a
server with what listens there already. The module starts nothing and changes nothing.

A check that fails raises CannotStart: one sentence that says what is wrong, and then what to do.
"""

from __future__ import annotations

import asyncio
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

from models.errors import RepositoryError, disk_is_full
from models.imports.starter import DEMO, demo_is_wanted, publishing_bytes
from models.manifest import ModelReference
from models.repository.repository import Repository
from service.errors import DosirakError
from service.host import absent
from service.settings import Settings
from service.storage.outages import SESSIONS, Outages

PORTS_TRIED: Final = 20
PATIENCE_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 2.0
FIRST_UNPRIVILEGED: Final = 1024
ELSEWHERE: Final = "or choose another directory with DOSIRAK_DATA_DIR"
LITTLE_SPACE: Final = 64 * 1024 * 1024
"""Less free disk than this is worth a warning: sessions, reports and imports are refused when it is used up."""


def address(settings: Settings) -> str:
    """Returns where a server with these settings is reached from its own machine."""
    host = settings.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{settings.port}"


def authorization(settings: Settings) -> dict[str, str]:
    """Returns the header that a server with these settings asks for."""
    key = settings.admin_key
    return {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Returns the family and the IP address of `host`. Raises socket.gaierror where it names none."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, str(where[0])


def try_to_listen(family: socket.AddressFamily, ip: str, port: int) -> None:
    """Listens for a moment. Raises OSError where this machine cannot listen there."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((ip, port))
        probe.listen()


def is_dosirak(settings: Settings) -> bool:
    """Returns whether a server of this project answers at the address, to the key of these settings."""
    try:
        answer = httpx.get(
            f"{address(settings)}/", headers=authorization(settings), timeout=ANSWER_SECONDS, trust_env=False
        )
        return bool(answer.json()["name"] == "Dosirak")
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


class CannotStart(DosirakError):
    """The server, or another command, cannot start; the message says what to do."""


def listening_address(settings: Settings) -> str:
    """Returns the IP address to listen on. Raises CannotStart where this machine cannot listen there."""
    try:
        family, ip = resolve(settings.host, settings.port)
    except OSError:
        raise CannotStart(f"{settings.host} is no address: set DOSIRAK_HOST to an IP address of this machine") from None
    try:
        try_to_listen(family, ip, settings.port)
    except OSError as error:
        raise CannotStart(_why_not_listening(settings, family, ip, error)) from None
    return ip


def _why_not_listening(settings: Settings, family: socket.AddressFamily, ip: str, error: OSError) -> str:
    port = settings.port
    if error.errno == errno.EADDRINUSE:
        free = _free_port(ip, port, family)
        another = f", or choose another port, as in DOSIRAK_PORT={free}" if free else ""
        taker = "a Dosirak that already serves there" if is_dosirak(settings) else "another program"
        return f"port {port} is taken by {taker}: end it{another}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{ip} is no address of this machine: set DOSIRAK_HOST to one of its own, as in 127.0.0.1"
    if error.errno in (errno.EACCES, errno.EPERM) and port < FIRST_UNPRIVILEGED:
        return f"port {port} is for the system's administrator: choose one from {FIRST_UNPRIVILEGED} on (DOSIRAK_PORT)"
    return f"{ip} port {port} cannot be listened on ({error.strerror}): choose others (DOSIRAK_HOST, DOSIRAK_PORT)"


def _free_port(ip: str, taken: int, family: socket.AddressFamily) -> int | None:
    for port in range(taken + 1, min(taken + 1 + PORTS_TRIED, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if probe.connect_ex((ip, port)) != 0:
                return port
    return None


def check_devices(settings: Settings, gpus: int) -> None:
    """Raises CannotStart for a device that is not there, on a machine where `gpus` of them are visible."""
    if sentence := absent(settings.device_list, gpus):
        raise CannotStart(f"DOSIRAK_DEVICES: {sentence}")


def check_directory(directory: Path) -> None:
    """Makes the data directory if it is not there, and writes to it. Raises CannotStart where that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(4096))
            probe.flush()
        foreign = foreign_in(directory)
    except OSError as error:
        raise CannotStart(_why_not_written(directory, error)) from None
    if foreign is not None:
        raise CannotStart(
            f"{foreign} belongs to {_owner(foreign)} and cannot be written: give it to {_this_user(directory)}, "
            f"{ELSEWHERE}"
        )


def foreign_in(directory: Path) -> Path | None:
    """Returns what of a data directory cannot be read and written, the first by name; None where all can. What file
    systems put there is not looked at: `lost+found`, and names with a dot, as `.snapshot`. Raises OSError."""
    named = (each for each in sorted(directory.iterdir()) if each.name[0] != "." and each.name != "lost+found")
    return next((each for each in named if not _usable(each)), None)


def _usable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _why_not_written(directory: Path, error: OSError) -> str:
    if disk_is_full(error):
        return f"the disk of {directory} is full: make room, {ELSEWHERE}"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"the data directory {directory} is, or lies in, a file: remove the file, {ELSEWHERE}"
    if error.errno == errno.EROFS:
        return f"the data directory {directory} is on a read-only file system: mount it for writing, {ELSEWHERE}"
    if error.errno in (errno.EACCES, errno.EPERM):
        place = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
        return f"{place} belongs to {_owner(place)} and cannot be written: give it to {_this_user(place)}, {ELSEWHERE}"
    return f"the data directory {directory} cannot be written ({error.strerror}): mend that, {ELSEWHERE}"


def _this_user(path: Path) -> str:
    """Returns the user and the command, by number: outside of a container its users have no names."""
    return f"{_user(os.geteuid())} (chown {os.geteuid()} {path}, with -R for all in it)"


def _owner(path: Path) -> str:
    return _user(path.lstat().st_uid)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def check_database(settings: Settings) -> None:
    """Raises CannotStart for a database that a newer release wrote, and for a URL that names no file. Other failures
    may pass: the server tries again."""
    from service.storage.database import migrating
    from service.storage.database.database import Database, sqlite_file

    async def look() -> None:
        database = Database(settings.session_database, PATIENCE_SECONDS, outages=Outages(SESSIONS, is_logged=False))
        try:
            await migrating.require_head(database)
        finally:
            await database.close()

    try:
        file = sqlite_file(settings.session_database)
        if file is None or file.exists():
            asyncio.run(look())
    except (migrating.NewerDatabase, ValueError) as error:
        raise CannotStart(f"the database of sessions cannot be used: {error}") from None
    except (migrating.OlderDatabase, DosirakError, OSError):
        return


def check_space(repository: Repository, directory: Path, reference: str = DEMO) -> str | None:
    """Returns a warning where little disk is free. Raises CannotStart where the demo model does not fit."""
    free = shutil.disk_usage(directory).free
    needed = publishing_bytes() if demo_is_wanted(repository, reference) else 0
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
        if demo_is_wanted(repository, reference) and ModelReference.parse(reference).name == DEMO:
            return
        repository.resolve(reference)
    except RepositoryError as error:
        names = repository.models()
        chosen = f", or set DOSIRAK_DEFAULT_MODEL to one of: {', '.join(names)}" if names else ""
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
