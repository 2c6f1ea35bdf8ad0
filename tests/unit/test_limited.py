"""A limited child ends alone, whatever it reads, and has neither secrets nor more than its limits."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from time import perf_counter

import pytest

from models.checkpoint.limited import Limits, run
from models.errors import InvalidSource
from tests.waiting import block_until

LIMITS = Limits(seconds=20, bytes=1 << 29)
SHORT = Limits(seconds=1, bytes=1 << 29)


def told(kind: str, argument: str = "", limits: Limits = LIMITS) -> str:
    with pytest.raises(InvalidSource) as caught:
        run("tests.hostile_child", kind, argument, subject="The file", way_out="mend it", limits=limits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("loops", "takes longer than 1 seconds to load and use"),
        ("takes memory", "needs more than 0.5 GiB of memory"),
        ("aborts", "ends the process that reads it, which has 0.5 GiB of memory"),
        ("kills itself", "ends the process that reads it, which has 0.5 GiB of memory"),
        ("raises", "ends the process that reads it, which has 0.5 GiB of memory"),
    ],
)
def test_it_ends_alone_and_its_end_is_a_sentence(kind: str, why: str) -> None:
    assert told(kind, limits=SHORT if kind == "loops" else LIMITS) == f"The file {why}; mend it"


def test_a_child_that_waits_is_killed_with_its_own_children() -> None:
    begun, mark = perf_counter(), "child-of-a-limited-child"
    assert "takes longer than 1 seconds" in told("waits", mark, SHORT)
    assert perf_counter() - begun < 20
    block_until(lambda: not any(mark.encode() in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_it_writes_nothing(tmp_path: Path) -> None:
    told("writes", str(tmp_path / "file"))
    assert (tmp_path / "file").stat().st_size == 0


def test_it_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_ADMIN_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = told("looks").split()
    assert "PATH" in found and not {"DOSIRAK_ADMIN_KEY", "HF_TOKEN"} & set(found)


def test_it_has_no_network_where_the_system_allows_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = told("asks", str(server.getsockname()[1]))
    if "it came through" in said and not _may_leave_the_network():
        pytest.skip("this system lets no process leave its network")
    assert "it came through" not in said


def _may_leave_the_network() -> bool:
    child = os.fork()
    if child == 0:
        import ctypes

        os._exit(ctypes.CDLL(None).unshare(0x50000000) != 0)
    return os.waitpid(child, 0)[1] == 0
