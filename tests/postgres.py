"""A private PostgreSQL for tests: one server a run, on a socket in a temporary directory, with a database per test.

Started when it is first asked for; ended with the run. Where there are no binaries, `missing` says so.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock

from tests import migrated

_ROOTS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_ACCOUNTS = ("postgres", "nobody")


def binaries() -> Path | None:
    found = shutil.which("initdb")
    return next((root for root in _ROOTS if (root / "initdb").exists()), Path(found).parent if found else None)


def account() -> str | None:
    """Who runs the server where we are root, which it refuses; None where we need nobody else."""
    if os.getuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in _ACCOUNTS if name in known), None)


def missing() -> str | None:
    """Why there is no PostgreSQL here, or None."""
    if binaries() is None:
        return "no PostgreSQL binaries (initdb, pg_ctl) on this machine"
    if os.getuid() == 0 and account() is None:
        return "PostgreSQL refuses to run as root, and there is no other account"
    return None


class Server:
    def __init__(self) -> None:
        found = binaries()
        assert found is not None
        self._binaries = found
        self._template = ""
        self._making_template = Lock()
        self.directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self.directory.chmod(0o755)
        self._data = self.directory / "data"
        self._data.mkdir(mode=0o700)
        if (name := account()) is not None:
            shutil.chown(self.directory, name)
            shutil.chown(self._data, name)
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        self.start()

    def start(self) -> None:
        # a test ends the server, never the machine: what is written need not reach the disk
        options = f"-c listen_addresses= -k {self.directory} -c max_connections=200 -c fsync=off"
        log = str(self.directory / "log")
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def sql(self, statement: str, database: str = "postgres") -> str:
        return self._psql(database, statement)

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def log_statements(self) -> None:
        """Has every statement logged from now on, so that `statements` counts them."""
        self.sql("ALTER SYSTEM SET log_statement = 'all'")
        self.sql("SELECT pg_reload_conf()")

    def statements(self) -> int:
        """How many were sent since `log_statements`, by all clients."""
        lines = (self.directory / "log").read_text().splitlines()
        return sum("LOG:  statement:" in line or "LOG:  execute " in line for line in lines)

    def empty_database(self) -> str:
        """The URL of a new database without tables."""
        return self._url(self._created("template1"))

    def new_database(self) -> str:
        """The URL of a new database with this version's tables."""
        with self._making_template:
            if not self._template:
                made = self._created("template1")
                with ThreadPoolExecutor(1) as thread:  # here may be an event loop
                    thread.submit(migrated.migrate, self._url(made)).result()
                self._template = made
        return self._url(self._created(self._template, migrated.NEW_ID.format(uuid.uuid4().hex)))

    def _created(self, template: str, *statements: str) -> str:
        """Creates a database, runs the statements there and returns its name."""
        name = f"t{uuid.uuid4().hex}"
        commands = (f'CREATE DATABASE "{name}" TEMPLATE "{template}"', f"\\connect {name}", *statements)
        self._psql("postgres", *commands)
        return name

    def _url(self, name: str) -> str:
        return f"postgresql+asyncpg://postgres@/{name}?host={self.directory}"

    def _psql(self, database: str, *commands: str) -> str:
        options = [each for command in commands for each in ("-c", command)]
        return self._run("psql", "-h", str(self.directory), "-U", "postgres", "-d", database, "-At", *options)

    def remove(self) -> None:
        subprocess.run(
            [self._binaries / "pg_ctl", "-D", self._data, "-m", "immediate", "stop"],
            user=account(),
            check=False,
            capture_output=True,
        )
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            user=account(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=90,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}"
        return done.stdout.strip()


@cache
def server() -> Server:
    started = Server()
    atexit.register(started.remove)
    return started
