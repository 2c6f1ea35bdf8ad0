"""This module records what each case takes, by `pytest --record=FILE`, and makes the list of the slow ones of it.

`python -m tests.durations FILE` writes `tests/slow.txt`. A fixture of a module or of the session is shared: each case
that runs bears an equal part of its setup, whoever came first.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pytest

from tests.proofs import PROOFS
from tests.tiers import SLOW, function_of, names

ENTERS: Final = 0.3
LEAVES: Final = 0.2
"""Seconds a case from which it is slow, and below which a slow one is quick again: what is between stays as it is."""
ROOT: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Case:
    """Seconds of a case without shared fixtures, the shared ones that the case uses, and the seconds of those that were
    set up for it."""

    seconds: float
    shared: tuple[str, ...]
    setups: dict[str, float]
    skipped: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write what each case takes into this file")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("record"):
        is_worker = hasattr(config, "workerinput")
        if is_worker or not config.getoption("numprocesses", None):
            config.pluginmanager.register(Recorder())
        if not is_worker:
            config.pluginmanager.register(Writer(path))


class Recorder:
    """Measures in the process that runs the tests, and sends with each report."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.setups: dict[str, float] = {}
        self.inner = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """What the first test of a process waits for, whichever it is, is no test's own."""
        if "torch" in sys.modules:
            importlib.import_module("transformers.modeling_utils")
        postgres = sys.modules.get("tests.postgres")
        if postgres is not None and postgres.missing() is None:
            postgres.server().new_database()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        begin, outer, self.inner = _seconds(), self.inner, 0.0
        try:
            return (yield)
        finally:
            whole = _seconds() - begin
            if fixturedef.scope != "function":
                key = shared_key(fixturedef, request.node)
                self.setups[key] = self.setups.get(key, 0.0) + whole - self.inner
                self.inner = whole
            self.inner += outer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self.seconds, self.setups, self.inner = 0.0, {}, 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        begin = _seconds()
        try:
            return (yield)
        finally:
            self.seconds += _seconds() - begin - sum(self.setups.values())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        begin = _seconds()
        try:
            return (yield)
        finally:
            self.seconds += _seconds() - begin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """The last case of a module ends what its module shared: its own teardown is not known."""
        begin = _seconds()
        try:
            return (yield)
        finally:
            if nextitem is not None and nextitem.nodeid.partition("::")[0] == item.nodeid.partition("::")[0]:
                self.seconds += _seconds() - begin
            item.user_properties.append(("took", [self.seconds, sorted({*shared_by(item), *self.setups}), self.setups]))


def _seconds() -> float:
    """A clock that stands still while this thread waits for a core: other work on the machine makes no test slow."""
    try:
        waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except OSError:
        waited = 0
    return perf_counter() - waited / 1e9


def shared_by(item: pytest.Item) -> list[str]:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    return [shared_key(each[-1], item) for each in definitions.values() if each[-1].scope != "function"]


def shared_key(fixture: pytest.FixtureDef[Any], node: Any) -> str:
    return f"{fixture.baseid if fixture.scope == 'session' else node.nodeid.partition('::')[0]}::{fixture.argname}"


class Writer:
    """Gathers the reports of all workers, one line of JSON a case."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = path.open("w", encoding="utf-8")
        self.skipped = set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped.add(report.nodeid)
        if report.when == "teardown":
            properties: dict[str, Any] = dict(report.user_properties)
            took = properties["took"]
            line = json.dumps([report.nodeid, *took, report.nodeid in self.skipped], ensure_ascii=False)
            self.lines.write(line + "\n")

    def pytest_unconfigure(self) -> None:
        self.lines.close()


def read(path: Path) -> dict[str, Case]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {name: Case(seconds, tuple(shared), setups, skipped) for name, seconds, shared, setups, skipped in rows}


def slow_cases(cases: Mapping[str, Case], before: Iterable[str]) -> set[str]:
    """Returns the cases that are slow. Where slow ones leave, the others bear more of what they shared: counted anew
    until nothing changes."""
    before, slow = set(before), set[str]()
    while True:
        costs = borne({name: case for name, case in cases.items() if name not in slow}, cases.values())
        more = {name for name, cost in costs.items() if cost > (LEAVES if names(before, name) else ENTERS)}
        if not more:
            return slow
        slow |= more


def borne(running: Mapping[str, Case], all_cases: Iterable[Case]) -> dict[str, float]:
    """Returns the seconds of each running case with its part of what is shared."""
    setups, users = Counter[str](), Counter[str]()
    for case in all_cases:
        setups.update(case.setups)
    for case in running.values():
        users.update(case.shared)
    return {
        name: case.seconds + sum(setups[each] / users[each] for each in case.shared) for name, case in running.items()
    }


def listed(cases: Mapping[str, Case], before: Iterable[str]) -> list[str]:
    """Returns the lines: a function where most of its cases are slow, else each slow case. Lines of functions that did
    not run stay while the functions are there; where only quick cases ran, all lines do."""
    ran = {name: case for name, case in cases.items() if not case.skipped}
    slow, before = slow_cases(ran, before), set(before)
    functions = defaultdict[str, list[str]](list)
    for name in ran:
        functions[function_of(name)].append(name)
    only_quick = not any(names(before, name) and not names(PROOFS, name) for name in ran)
    lines = {line for line in before if (only_quick or function_of(line) not in functions) and is_there(line)}
    for function, its in functions.items():
        found = slow & set(its)
        lines |= {function} if 2 * len(found) > len(its) else found
    return sorted(lines)


def is_there(line: str) -> bool:
    """Returns whether the line's file names its function, or the class that has it."""
    file, _, function = function_of(line).partition("::")
    path, name = ROOT / file, function.partition("::")[0]
    return path.is_file() and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")) is not None


def main(record: Path) -> None:
    cases, before = read(record), SLOW.read_text(encoding="utf-8").splitlines() if SLOW.exists() else []
    lines = listed(cases, before)
    SLOW.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    quick = [case.seconds for name, case in cases.items() if not names(lines, name)]
    everything = sum(case.seconds for case in cases.values())
    print(f"{len(lines)} lines; {len(quick)} of {len(cases)} cases are quick: {sum(quick):.0f} of {everything:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
