"""The kernel gives the processors to the event loop first, then to an engine's steps, then to what works beside it."""

from __future__ import annotations

import os
import subprocess
import sys

from service.host import BESIDE_NICENESS, ENGINE_NICENESS

ENGINE = """
import os, socket
from service.engine.process.loop import run_process

def prepare():
    print(os.nice(0))
    raise EOFError

ours, theirs = socket.socketpair()
run_process(prepare, ["", str(theirs.detach())])
"""
BESIDE = """
import os, threading
from service.engine.process.{module} import {loader}
from service.engine.protocol.messages import LoadAdapter

os.nice(10)
os.geteuid() or os.setuid(65534)  # whoever is not root may go back only
woken, nices = threading.Event(), []
{begin}
assert woken.wait(60)
print(nices[0], os.nice(0))
"""
ADAPTERS = """
loader = AdapterLoader(lambda *_: nices.append(os.nice(0)), woken.set)
loader.load(LoadAdapter("one", "directory", 1))
"""
GRAMMARS = """
class Compiled:
    def __contains__(self, text):
        return False

    def compile(self, text):
        nices.append(os.nice(0))

from types import SimpleNamespace

loader = GrammarLoader(Compiled(), woken.set)
loader.keeps(SimpleNamespace(params=SimpleNamespace(grammar="grammar")))
"""


def said(source: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return [*map(int, done.stdout.split())]


def test_an_engine_stands_back_behind_the_event_loop() -> None:
    assert said(ENGINE) == [min(19, os.nice(0) + ENGINE_NICENESS)]


def test_a_thread_beside_the_steps_stands_back_by_itself_also_without_rights() -> None:
    """With an absolute priority the thread died, where somebody had started the server with `nice` and no rights, and
    its requests waited for ever."""
    niced = min(19, os.nice(0) + 10)
    wanted = [min(19, niced + BESIDE_NICENESS), niced]
    assert said(BESIDE.format(module="adapter_loading", loader="AdapterLoader", begin=ADAPTERS)) == wanted
    assert said(BESIDE.format(module="grammar_loading", loader="GrammarLoader", begin=GRAMMARS)) == wanted
