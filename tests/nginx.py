"""A real nginx with the configuration of `docker/nginx`, on a free port, before given instances."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import httpx

from loadtest.bench.running import free_port

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "docker" / "nginx" / "nginx.conf"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
LINE = "server dosirak-a:3000 max_fails=1 fail_timeout=2s;"
"""As `instances.conf` has it for its first instance."""


class Instance(Protocol):
    @property
    def port(self) -> int: ...


def missing() -> str | None:
    return None if shutil.which("nginx") else "no nginx on this machine"


class Nginx:
    def __init__(self, directory: Path, instances: Sequence[Instance]) -> None:
        self._directory, self._instances = directory, instances
        directory.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "access.log"
        text = CONFIGURATION.read_text()
        for here, ours in (
            ("listen 8080;", f"listen 127.0.0.1:{self.port};"),
            ("/dev/stdout", str(self._log)),
            ("worker_processes auto;", f"{_user()}worker_processes 1; pid {directory}/pid; daemon off;"),
            ("http {", "http { " + "".join(f"{each}_temp_path {directory}/{each}; " for each in TEMPORARY)),
        ):
            assert here in text, f"{CONFIGURATION} has no {here!r}"
            text = text.replace(here, ours)
        (directory / "nginx.conf").write_text(text)
        self._write(())
        self._words = [
            "nginx",
            "-p",
            str(directory),
            "-c",
            str(directory / "nginx.conf"),
            "-e",
            str(directory / "errors"),
        ]
        subprocess.run([*self._words, "-t"], check=True, capture_output=True, text=True)
        self.process = subprocess.Popen(self._words, start_new_session=True)
        self._until_it_answers()

    def without(self, *instances: Instance) -> None:
        """Marks these as `down`, and all others as not, and waits until a worker with that takes the requests."""
        before = self._workers()
        self._write(instances)
        subprocess.run([*self._words, "-s", "reload"], check=True)
        deadline = time.monotonic() + 10
        while not self._workers() - before:
            assert time.monotonic() < deadline, "nginx did not take the new instances"
            time.sleep(0.02)
        time.sleep(0.1)  # the old worker's socket is closed with the signal after

    def attempts(self, request_id: str) -> int:
        """Returns to how many instances nginx sent a request that is over."""
        deadline = time.monotonic() + 10
        while not (lines := [line for line in self._log.read_text().splitlines() if request_id in line]):
            assert time.monotonic() < deadline, f"no line of {request_id}"
            time.sleep(0.02)
        (line,) = lines
        return line.split(request_id)[1].count("127.0.0.1:")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def _write(self, down: Collection[Instance]) -> None:
        lines = []
        for each in self._instances:
            line = LINE.replace("dosirak-a:3000", f"127.0.0.1:{each.port}")
            lines.append(line.replace(";", " down;") if each in down else line)
        (self._directory / "instances.conf").write_text("\n".join(lines))

    def _workers(self) -> set[str]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return set(children.read_text().split())

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                httpx.get(self.url)
            except httpx.TransportError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError((self._directory / "errors").read_text())


def _user() -> str:
    """The workers must write in a directory that is its owner's alone; nginx ignores this where we are not root."""
    return "user root; " if os.getuid() == 0 else ""
