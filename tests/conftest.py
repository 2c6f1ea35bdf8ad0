"""All tests run with Ctrl-C as a terminal gives it to a program, and on the kernels that `tests.sanitized` asks for.
Servers that they start serve the demo model and fetch nothing, unless a test says otherwise."""

from __future__ import annotations

import inspect
import os
import signal
from functools import partial

import httpx
import hypothesis
import pytest

from models.imports.starter import DEMO
from tests.sanitized import VARIABLE

pytest_plugins = ["tests.tiers", "tests.durations"]

# Other work on the cores makes a test case late, and nothing else.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# And an answer late: of httpx's 5 s without a word, shared by all its functions, a first page of docs takes half here.
for _operation in ("connect", "read", "write", "pool"):
    setattr(inspect.signature(httpx.get).parameters["timeout"].default, _operation, 60.0)

# A shell that runs the tests in its background ignores SIGINT, and programs inherit that: Ctrl-C would end none of
# them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("DOSIRAK_DEFAULT_MODEL", DEMO)

if os.environ.get(VARIABLE):
    from service.engine.runner.native import library

    library.open_library = partial(library.open_library, sanitized=True)


def pytest_configure(config: pytest.Config) -> None:
    """Programs that a test starts have no sanitizers: some have less memory than these reserve. Workers have them."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if os.environ.get(VARIABLE) and runs_tests:
        os.environ.pop("LD_PRELOAD", None)
