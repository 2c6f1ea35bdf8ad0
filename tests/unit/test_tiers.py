"""`make test` runs some tests and leaves others out: which, and how the list of slow ones is made of a recorded run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import durations, tiers
from tests.durations import ENTERS, LEAVES, Case, listed, read
from tests.proofs import PROOFS

ROOT = Path(__file__).parent.parent.parent
SUITE = """
import time
import pytest

@pytest.fixture(scope="module")
def dear():
    time.sleep(0.6)

@pytest.fixture
def nested(request):
    request.getfixturevalue("dear")

@pytest.mark.parametrize("seconds", [0, 0.5])
def test_own(seconds):
    time.sleep(seconds)

def test_first(nested): ...
def test_second(dear): ...
def test_third(dear): ...

@pytest.mark.skip
def test_skipped(): ...
"""


def case(seconds: float, *shared: str, sets_up: float = 0.0, skipped: bool = False) -> Case:
    return Case(seconds, shared, {shared[0]: sets_up} if sets_up else {}, skipped)


def test_every_line_names_a_test() -> None:
    lines = tiers.SLOW.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    gone = [line for line in [*lines, *PROOFS] if not durations.is_there(line)]
    assert gone == [], "write the list anew (make slow-list), or take these lines out"


def test_a_case_is_quick_unless_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "slow", lambda: frozenset({"a.py::test_a", "a.py::test_b[2]", "a.py::test_c"}))
    monkeypatch.setattr(tiers, "PROOFS", {"a.py::test_c": "why"})
    quick = [
        name
        for name in ("a.py::test_a", "a.py::test_a[1]", "a.py::test_b[1]", "a.py::test_b[2]", "a.py::test_c", "b.py::d")
        if tiers.is_quick(name)
    ]
    assert quick == ["a.py::test_b[1]", "a.py::test_c", "b.py::d"]


def test_a_proof_without_a_case_is_missing() -> None:
    cases = ["a.py::test_a[1]", "b.py::test_b"]
    assert tiers.missing(["a.py::test_a", "a.py::test_a[1]", "c.py::test_c"], cases) == []
    assert tiers.missing(["a.py::test_a[2]", "b.py::test_a"], cases) == ["a.py::test_a[2]", "b.py::test_a"]


def test_a_function_is_listed_where_most_of_its_cases_are_slow() -> None:
    cases = {"a::f[1]": case(9), "a::f[2]": case(9), "a::f[3]": case(0), "a::g[1]": case(9), "a::g[2]": case(0)}
    assert listed(cases, []) == ["a::f", "a::g[1]"]


def test_what_is_between_the_bounds_stays_where_it_was() -> None:
    between = {"a::f": case((ENTERS + LEAVES) / 2)}
    assert listed(between, []) == [] and listed(between, ["a::f"]) == ["a::f"]
    assert listed({"a::f": case(LEAVES / 2)}, ["a::f"]) == []


def test_a_shared_fixture_is_borne_by_all_that_use_it() -> None:
    many = {f"a::f{number}": case(0.01, "server", sets_up=5 * ENTERS * (number == 0)) for number in range(10)}
    assert listed(many, []) == []
    assert listed(dict(list(many.items())[:3]), []) == ["a::f0", "a::f1", "a::f2"]
    dear = {f"a::g{number}": case(9, "server") for number in range(8)}
    few = {**dict(list(many.items())[:3]), **dear}
    assert len(listed(few, [])) == len(few), "where the dear ones leave, three bear the server alone"


def test_what_did_not_run_stays_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "is_there", lambda line: "gone" not in line)
    before = ["a::elsewhere", "a::gone", "a::skipped[1]"]
    assert listed({"a::skipped[1]": case(0, skipped=True)}, before) == ["a::elsewhere", "a::skipped[1]"]
    assert listed({"a::f[1]": case(0)}, ["a::f[2]"]) == ["a::f[2]"], "only quick ones ran"
    assert listed({"a::f[1]": case(0), "a::g": case(9)}, ["a::f[2]", "a::g"]) == ["a::g"]


def test_a_run_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    record = tmp_path / "durations.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.tiers", "-p", "tests.durations", "-c", "/dev/null"]
    ran = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", f"--record={record}", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = {name.partition("::")[2]: each for name, each in read(record).items()}
    assert cases["test_own[0.5]"].seconds > 0.4 > cases["test_own[0]"].seconds
    first, third = cases["test_first"], cases["test_third"]
    assert first.seconds < 0.5 < sum(first.setups.values()) and not third.setups
    assert all("test_it.py::dear" in each.shared for each in (first, cases["test_second"], third))
    assert cases["test_skipped"].skipped
