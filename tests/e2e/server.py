"""A real server for end-to-end tests: started as a user starts it, watched from outside, ended without orphans."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 120


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, timeout: float = 60) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout)

    def children(self, *words: str) -> list[psutil.Process]:
        """Descendants whose command line holds all the words."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if all(word in command_of(child) for word in words)]

    def engines(self) -> list[psutil.Process]:
        return self.children("service.engine.process.worker")

    def engine(self, model: str = "") -> psutil.Process:
        """The engine process that answers for `model`, or for the first one that is ready; one that dies, or loads
        beside it, is not meant."""
        deployments = self.client().get("/v1/deployments").json()["data"]
        ready = [each for each in deployments if each["state"] == "ready" and model in ("", each["model"])]
        return psutil.Process(int(ready[0]["replicas"][0]["pid"]))

    def api(self) -> psutil.Process:
        """The process that listens on the port and has engines as children."""
        return next(parent for engine in self.engines() if (parent := engine.parent()) is not None)


def command_of(process: psutil.Process) -> str:
    """Nothing where the process has ended, reaped or not."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


@contextmanager
def running(
    command: list[str], data_dir: Path, log: Path, port: int, cwd: Path = ROOT, **variables: str
) -> Iterator[Server]:
    """`command` with its data in `data_dir`; ready at entry, ended at exit."""
    server = starting(command, data_dir, log, port, cwd, **variables)
    try:
        until_ready(server)
        yield server
    finally:
        end(server)


def starting(command: list[str], data_dir: Path, log: Path, port: int, cwd: Path = ROOT, **variables: str) -> Server:
    """`command` with its data in `data_dir`, just begun; the caller ends it."""
    environment = {**os.environ, "DOSIRAK_DATA_DIR": str(data_dir), "DOSIRAK_PORT": str(port)}
    environment |= {"BENTOML_HOME": str(data_dir), "BENTOML_DO_NOT_TRACK": "true", "DOSIRAK_LOG_FORMAT": "json"}
    environment |= {"DOSIRAK_IDLE_REPORTS": "false"}
    environment |= variables
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=output, stderr=output, text=True)
    return Server(f"http://127.0.0.1:{port}", process, log)


def until_ready(server: Server, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"the server did not become ready:\n{server.log.read_text()[-4000:]}")


def end(server: Server) -> None:
    family = psutil.Process(server.process.pid).children(recursive=True) if server.process.poll() is None else []
    server.process.terminate()
    try:
        server.process.wait(60)
    finally:
        for process in family:
            if process.is_running():
                process.kill()


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def said(server: Server, sent: bytes) -> bytes:
    """Returns what comes for some bytes until the server ends the connection."""
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=20) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def stream(client: httpx.Client, body: dict[str, object]) -> list[dict[str, object]]:
    """All events of one `/generate_stream`."""
    with client.stream("POST", "/generate_stream", json=body) as response:
        assert response.status_code == 200, response.read()
        return [json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:")]


def text_of(events: list[dict[str, object]]) -> str:
    tokens = (event["token"] for event in events if "token" in event)
    return "".join(str(token["text"]) for token in tokens if isinstance(token, dict))
