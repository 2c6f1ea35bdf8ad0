"""The real vLLM on two hosts: network namespaces with a cable between them, and a /dev/shm each.

Tensor and pipeline parallel 2 give the tokens of one rank, and when a node's process is killed all end, all start again
and the answer goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from models.imports.importing import import_source
from models.repository.repository import Repository
from tests.vllm_engines import DEMO, NIGHTLY

HEAD, NODE = "10.77.0.1", "10.77.0.2"
NETWORK = "10.77.0.0/24"
START_SECONDS = 1200
TOKENS = 24

pytestmark = [
    *NIGHTLY,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="namespaces need root and `ip`"),
]


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
    """Two hosts' networks with a cable between them."""
    names = (f"dosirak-head-{os.getpid()}", f"dosirak-node-{os.getpid()}")
    made = [f"netns add {name}" for name in names]
    made.append(f"link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}")
    for name, address in zip(names, (HEAD, NODE), strict=True):
        made += [
            f"-n {name} addr add {address}/24 dev veth0",
            f"-n {name} link set veth0 up",
            f"-n {name} link set lo up",
        ]
    try:
        for words in made:
            subprocess.run(["ip", *words.split()], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextmanager
def within(namespace: str, directory: Path, words: list[str], **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours on that host, with shared memory of its own, as another host has."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DOSIRAK_")}
    env |= {"DOSIRAK_DATA_DIR": str(directory), "DOSIRAK_TRUSTED_NETWORK": NETWORK, **variables}
    if python := os.environ.get("DOSIRAK_VLLM_PYTHON"):
        env["DOSIRAK_VLLM_PYTHON"] = python
    shell = f"mount -t tmpfs tmpfs /dev/shm && exec {sys.executable} -m {' '.join(words)}"
    command = ["ip", "netns", "exec", namespace, "unshare", "--mount", "--ipc", "sh", "-c", shell]
    with (directory.parent / f"{directory.name}.log").open("ab") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT if "serve" in words else signal.SIGKILL)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Head:
    """The head's API, from its own network."""

    def __init__(self, namespace: str) -> None:
        self._curl = ["ip", "netns", "exec", namespace, "curl", "--silent", "--max-time", "900"]

    def ask(self, path: str, body: dict[str, object] | None = None, *options: str) -> dict[str, object]:
        given = ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body is not None else []
        told = subprocess.run([*self._curl, *options, *given, f"http://127.0.0.1:3000{path}"], capture_output=True)
        return dict(json.loads(told.stdout)) if told.stdout else {}

    def deployment(self) -> dict[str, object]:
        """Returns that of `demo:1`, beside which the server may serve others; {} where there is none."""
        shown = self.ask("/v1/deployments").get("data") or []
        assert isinstance(shown, list)
        return next((dict(each) for each in shown if each["model"] == "demo:1"), {})

    def until(self, *states: str) -> dict[str, object]:
        limit = time.monotonic() + START_SECONDS
        while (shown := self.deployment()).get("state") not in states:
            assert time.monotonic() < limit, shown
            time.sleep(0.5)
        return shown

    def load(self, **options: int) -> dict[str, object]:
        self.ask("/v1/deployments", {"model": "demo:1", "engine": "vllm", "engine_options": options})
        shown = self.until("ready", "failed")
        assert shown["state"] == "ready", shown
        return shown

    def unload(self) -> None:
        self.ask("/v1/deployments/demo:1", None, "-X", "DELETE")
        limit = time.monotonic() + 60
        while self.deployment():
            assert time.monotonic() < limit
            time.sleep(0.5)

    def tokens(self, tokens: int = TOKENS) -> list[int]:
        parameters = {"max_new_tokens": tokens, "ignore_eos": True, "details": True, "temperature": 0}
        told = self.ask("/generate", {"inputs": "My name is Ann. What is my name?", "parameters": parameters})
        details = told["details"]
        assert isinstance(details, dict), told
        return [int(each["id"]) for each in details["tokens"]]


def vllm_below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The vLLM process of a node, then its ranks."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [each for each in found if "resource_tracker" not in " ".join(each.cmdline())]


def test_two_hosts_answer_as_one(tmp_path: Path, namespaces: tuple[str, str]) -> None:
    for name in ("head", "node"):
        import_source(Repository(tmp_path / name), str(DEMO), "demo", precision="fp32")
    serving = {"DOSIRAK_PRELOAD": "false", "DOSIRAK_IDLE_REPORTS": "false", "DOSIRAK_KV_CACHE_BYTES": str(1 << 28)}
    head = Head(namespaces[0])
    with ExitStack() as hosts:
        hosts.enter_context(within(namespaces[0], tmp_path / "head", ["service.cli", "serve"], **serving))
        while not head.ask("/info"):
            time.sleep(0.5)
        head.load(enforce_eager=1)
        expected = head.tokens()
        head.unload()

        words = ["service.cli", "node", "--rank", "1", "--head", HEAD]
        node = hosts.enter_context(within(namespaces[1], tmp_path / "node", words))
        head.load(pipeline_parallel=2, nodes=2, enforce_eager=1)
        assert head.tokens() == expected
        head.unload()

        head.load(tensor_parallel=2, nodes=2, enforce_eager=1)
        assert head.tokens() == expected

        ranks = vllm_below(node)
        killed = time.monotonic()
        ranks[0].send_signal(signal.SIGKILL)
        shown = head.until("restarting")
        seconds = time.monotonic() - killed
        assert "the node of rank 1 (10.77.0.2) is lost" in str(shown["error"]) and seconds < 10
        assert not psutil.wait_procs(ranks, 10)[1], "its ranks end with it"
        assert head.tokens() == expected, "all start again, and a request waits for them"
