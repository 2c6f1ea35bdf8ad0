"""Which tests run: all that are asked for, or with `--tier=quick` those of `make test`, with `--tier=slow` the others.

`tests/slow.txt` lists the slow ones: a function, or one case of it, a line. `make slow-list` writes it, see
`tests/durations.py`. A case that is not in the list is quick. The proofs of `tests/proofs.py` run with the quick
ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.proofs import PROOFS

SLOW: Final = Path(__file__).with_name("slow.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("quick", "slow"), help="run what `make test` runs, or what it leaves out")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (tier := config.getoption("tier")) is None:
        return
    cases = [item.nodeid for item in items]
    if whole_files(config.args) and (gone := missing(PROOFS, cases)):
        raise pytest.UsageError(f"no such tests, though tests/proofs.py names them: {', '.join(gone)}")
    runs = [is_quick(case) == (tier == "quick") for case in cases]
    config.hook.pytest_deselected(items=[item for item, run in zip(items, runs, strict=True) if not run])
    items[:] = [item for item, run in zip(items, runs, strict=True) if run]


def is_quick(case: str) -> bool:
    return names(PROOFS, case) or not names(slow(), case)


def names(lines: Iterable[str], case: str) -> bool:
    """Returns whether one of the lines is this case or its function."""
    return case in lines or function_of(case) in lines


def function_of(case: str) -> str:
    """'tests/a.py::test_b[c]' → 'tests/a.py::test_b'."""
    return case.partition("[")[0]


def missing(lines: Iterable[str], cases: Iterable[str]) -> list[str]:
    """Returns the lines that name no case of a file that has cases."""
    known = {*cases, *map(function_of, cases)}
    files = {case.partition("::")[0] for case in known}
    return [line for line in lines if line not in known and line.partition("::")[0] in files]


def whole_files(arguments: Iterable[str]) -> bool:
    return not any("::" in each for each in arguments)


@cache
def slow() -> frozenset[str]:
    return frozenset(SLOW.read_text().splitlines())
