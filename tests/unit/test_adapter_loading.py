"""Adapters are read in a thread: which orders count, and which requests wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from service.engine.process.adapter_loading import AdapterLoader
from service.engine.protocol.messages import LoadAdapter
from tests.fakes import make_request


class World:
    """Reads an adapter when it is let."""

    def __init__(self) -> None:
        self.attached: list[str] = []
        self.read: list[str] = []
        self.gate = threading.Event()
        self._woken = threading.Semaphore(0)
        self.loader = AdapterLoader(self._read, self._woken.release)

    def _read(self, name: str, directory: str) -> Callable[[], None]:
        assert self.gate.wait(30)
        self.read.append(directory)
        if directory == "broken":
            raise ValueError("its files do not fit")
        return lambda: self.attached.append(directory)

    def wait(self, times: int = 1) -> None:
        """Until so many orders were carried out."""
        self.gate.set()
        for _ in range(times):
            assert self._woken.acquire(timeout=30)

    def taken(self) -> list[tuple[int, str, list[str]]]:
        """Ticket, error, ids of those who waited; what was read is attached."""
        found = []
        for order, read, waiting in self.loader.take():
            if not isinstance(read, str):
                read()
            found.append((order.ticket, read if isinstance(read, str) else "", [each.id for each in waiting]))
        return found


def test_what_was_read_comes_with_those_who_waited() -> None:
    world = World()
    world.loader.load(LoadAdapter("one", "first", 1))
    world.loader.load(LoadAdapter("two", "broken", 2))
    assert world.loader.keeps(make_request("a", adapter="one")) and world.loader.keeps(make_request("b", adapter="two"))
    assert not world.loader.keeps(make_request("c")) and not world.loader.keeps(make_request("d", adapter="other"))
    assert world.loader.is_busy and world.taken() == []
    world.wait(2)
    assert world.taken() == [(1, "", ["a"]), (2, "ValueError: its files do not fit", ["b"])]
    assert world.attached == ["first"] and not world.loader.is_busy
    assert not world.loader.keeps(make_request("e", adapter="one")), "it is there"


def test_the_last_order_for_a_name_counts() -> None:
    world = World()
    world.loader.load(LoadAdapter("one", "old", 1))
    assert world.loader.keeps(make_request("a", adapter="one"))
    world.loader.load(LoadAdapter("one", "new", 2))
    world.wait(2)
    assert world.read == ["old", "new"]
    assert world.taken() == [(2, "", ["a"])] and world.attached == ["new"]


def test_an_adapter_that_is_not_wanted_any_more_gives_its_requests_back() -> None:
    world = World()
    world.loader.load(LoadAdapter("one", "first", 1))
    for id in "ab":
        world.loader.keeps(make_request(id, adapter="one"))
    assert [each.id for each in world.loader.abort(["a", "z"])] == ["a"]
    assert [each.id for each in world.loader.forget("one")] == ["b"]
    world.wait()
    assert world.taken() == [] and world.attached == []
