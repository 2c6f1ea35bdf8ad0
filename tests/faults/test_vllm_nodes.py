"""Engines of several hosts, around a vLLM of arithmetic: who comes, who does not, who is refused, and one end for all.

The hosts are processes of this one, and the trusted network is loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from models import __version__
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config, worker_of
from service.deployments.engine_options import EngineOptions
from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed
from service.engine.kinds.kinds import kind_of
from service.engine.protocol.messages import Request, SamplingParams, StepOutput
from service.engine.vllm.lines import Join, Order, Phase, Prepared, Refused
from service.settings import Settings
from tests.fake_vllm import expected, interpreter
from tests.fakes import tokens_of
from tests.versions import publish
from tests.waiting import until

NETWORK = "127.0.0.0/8"
FIRST = "127.0.0.1"
SECONDS = 60


def settings_of(directory: Path, port: int, **given: Any) -> Settings:
    return Settings(
        data_dir=directory,
        vllm_python=interpreter(directory),
        trusted_network=NETWORK,
        node_port=port,
        kv_cache_bytes=1 << 20,
        **given,
    )


def free_port() -> int:
    with socket.create_server((FIRST, 0)) as server:
        return int(server.getsockname()[1])


def host(tmp_path: Path, name: str, content: str = "weights") -> Path:
    """A host's data directory with `demo:1`."""
    directory = tmp_path / name
    publish(Repository(directory), content)
    return directory


def client_of(settings: Settings, **options: int | str) -> EngineClient:
    repository = Repository(settings.data_dir)
    kind = kind_of("vllm", {"tensor_parallel": 2, "nodes": 2, **options})
    manifest = repository.get("demo", "1")
    config = msgspec.structs.replace(
        engine_config(settings, repository, manifest, 0, EngineOptions(kind=kind)), heartbeat_seconds=0.1
    )
    worker = worker_of(settings, kind, config.threads)
    env = {**worker.env, "FAKE_VLLM_STEP_SECONDS": "0.02"}
    return EngineClient(config, module=worker.module, interpreter=worker.interpreter, env=env)


@asynccontextmanager
async def node(directory: Path, port: int, rank: int = 1) -> AsyncIterator[Process]:
    """`dosirak node`, as an operator starts it; its lines are in the file `said` of its directory."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DOSIRAK_")},
        "DOSIRAK_DATA_DIR": str(directory),
        "DOSIRAK_VLLM_PYTHON": str(interpreter(directory)),
        "DOSIRAK_TRUSTED_NETWORK": NETWORK,
        "DOSIRAK_NODE_PORT": str(port),
    }
    words = ("-m", "service.cli", "node", "--rank", str(rank), "--head", "localhost")
    with (directory / "said").open("w") as said:
        process = await asyncio.create_subprocess_exec(sys.executable, *words, env=env, stdout=said, stderr=said)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def said(directory: Path) -> str:
    return (directory / "said").read_text()


def request_of(id: str, prompt: list[int], max_tokens: int = 8) -> Request:
    return Request(id, tuple(prompt), SamplingParams(max_tokens=max_tokens))


async def answer(client: EngineClient, request: Request) -> list[StepOutput]:
    return [output async for output in client.generate(request)]


def vllm_processes(process: Process) -> list[psutil.Process]:
    """The vLLM process of a node, then its ranks."""
    return psutil.Process(process.pid).children(recursive=True)


async def test_two_hosts_serve_one_version_and_end_and_start_as_one(tmp_path: Path) -> None:
    port, here, there = free_port(), host(tmp_path, "head"), host(tmp_path, "node")
    client = client_of(settings_of(here, port))
    phases = list[str]()
    async with node(there, port) as process:
        await asyncio.wait_for(client.start(lambda phase, _: phases.append(phase)), SECONDS)
        try:
            assert phases[-1] == "starting vLLM"
            assert tokens_of(await answer(client, request_of("a", [5, 6]))) == expected([5, 6], 8)
            headless = vllm_processes(process)
            assert len([each for each in headless if "spawn_main" in " ".join(each.cmdline())]) == 1
            engine = psutil.Process(client.pid)
            family = [engine, *engine.children(recursive=True), *headless]

            outputs = list[StepOutput]()
            async with aclosing(client.generate(request_of("b", [3, 4], 60))) as stream:
                async for output in stream:
                    outputs.append(output)
                    if output.token_ids and len(tokens_of(outputs)) == 7:
                        headless[0].send_signal(signal.SIGKILL)
                        _, alive = await asyncio.to_thread(psutil.wait_procs, family, 60)
                        assert not alive, "all end"
            assert tokens_of(outputs) == expected([3, 4], 60), "all start again, and the answer goes on"
            assert client.restarts == 1
            assert process.returncode is None, "the command stays"
        finally:
            await client.stop()


@pytest.mark.nightly
async def test_a_host_that_is_gone_altogether(tmp_path: Path) -> None:
    port, here, there = free_port(), host(tmp_path, "head"), host(tmp_path, "node")
    client = client_of(settings_of(here, port))
    async with node(there, port) as process:
        await asyncio.wait_for(client.start(), SECONDS)
        process.kill()
        await until(lambda: "the node of rank 1 (127.0.0.1) is gone" in client.why_not_ready)
    try:
        async with node(there, port):
            assert tokens_of(await answer(client, request_of("c", [9]))) == expected([9], 8)
    finally:
        await client.stop()


async def test_who_did_not_come_is_said(tmp_path: Path) -> None:
    settings = settings_of(host(tmp_path, "head"), free_port(), node_wait_seconds=0.5)
    client = client_of(settings, tensor_parallel=3, nodes=3)
    told = r"the nodes of rank 1, 2 did not come within 0.5 s .*node --rank 1 --head 127.0.0.1"
    with pytest.raises(EngineFailed, match=told):
        await asyncio.wait_for(client.start(), SECONDS)


async def test_a_node_that_can_never_join_ends_with_the_cause(tmp_path: Path) -> None:
    port, here, there = free_port(), host(tmp_path, "head"), host(tmp_path, "node")
    async with loading(client_of(settings_of(here, port))), node(there, port, rank=7) as process:
        assert await asyncio.wait_for(process.wait(), SECONDS) == 1
    assert "there is no rank 7: the nodes of this engine are 1 to 1" in " ".join(said(there).split())


@pytest.mark.parametrize(
    ("content", "told"),
    [pytest.param("others", "at the head", marks=pytest.mark.nightly), ("", "there is no demo:1 here")],
)
async def test_a_node_without_the_version_fails_the_deployment(tmp_path: Path, content: str, told: str) -> None:
    port, here, there = free_port(), host(tmp_path, "head"), tmp_path / "node"
    there.mkdir()
    if content:
        host(tmp_path, "node", content)
    client = client_of(settings_of(here, port))
    async with node(there, port):
        with pytest.raises(EngineFailed, match=f"the node of rank 1 .* cannot serve demo:1: .*{told}"):
            await asyncio.wait_for(client.start(), SECONDS)


async def test_a_second_engine_of_several_nodes_has_no_port(tmp_path: Path) -> None:
    port, here = free_port(), host(tmp_path, "head")
    with socket.create_server((FIRST, port)), pytest.raises(EngineFailed, match="DOSIRAK_NODE_PORT"):
        await client_of(settings_of(here, port)).start()


def told(port: int, *lines: bytes, address: str = FIRST) -> list[bytes]:
    """What the head answers to these lines until it closes the connection."""
    with socket.create_connection((FIRST, port), 5, (address, 0)) as connection:
        for line in lines:
            connection.sendall(line + b"\n")
        connection.settimeout(5)
        return b"".join(iter(lambda: connection.recv(4096), b"")).splitlines()


async def test_what_is_no_node_changes_nothing(tmp_path: Path) -> None:
    port, here = free_port(), host(tmp_path, "head")
    settings = settings_of(here, port).model_copy(update={"trusted_network": f"{FIRST}/32"})
    join, other = Join(1, "0.32.0", __version__), Join(1, "0.32.1", __version__)
    async with loading(client_of(settings)):
        await until(lambda: _listens(port))
        assert await asyncio.to_thread(told, port, b"GET / HTTP/1.1") == []
        assert await asyncio.to_thread(told, port, msgspec.json.encode(Prepared())) == []
        in_one_read = msgspec.json.encode(Join(7, "0.32.0", __version__)) + b"\n" + msgspec.json.encode(Phase("behind"))
        [line] = await asyncio.to_thread(told, port, in_one_read)
        assert "there is no rank 7" in msgspec.json.decode(line, type=Refused).cause
        outside = await asyncio.to_thread(refused, port, join, "127.0.0.2")
        assert "127.0.0.2 does not lie in DOSIRAK_TRUSTED_NETWORK=127.0.0.1/32" in outside
        assert "the head has vLLM 0.32.0" in await asyncio.to_thread(refused, port, other)
        with socket.create_connection((FIRST, port), 5) as connection:
            connection.sendall(msgspec.json.encode(join) + b"\n")
            order = msgspec.json.decode(connection.recv(65536).splitlines()[0], type=Order)
            assert order.reference == "demo:1" and order.config.model_dir == "" and order.cache_bytes == 1 << 19
            assert "is here already" in await asyncio.to_thread(refused, port, join)


@asynccontextmanager
async def loading(client: EngineClient) -> AsyncIterator[None]:
    """The engine waits for its nodes, whatever comes meanwhile."""
    starting = asyncio.create_task(client.start())
    try:
        yield
        assert not starting.done()
    finally:
        await client.stop()
        with suppress(EngineFailed):
            await starting


def refused(port: int, join: Join, address: str = FIRST) -> str:
    [line] = told(port, msgspec.json.encode(join), address=address)
    return msgspec.json.decode(line, type=Refused).cause


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((FIRST, port)) == 0
