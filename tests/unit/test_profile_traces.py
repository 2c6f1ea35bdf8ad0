"""The result of a recorded profile: own seconds and bytes by name, one trace, and the comparison of two."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.observability.profiles.trace import Event, Measured, Operator, Sums, differences, join
from tests.profiles import BASE, event, write_piece


def by_name(operators: list[Operator]) -> dict[str, Operator]:
    return {each.name: each for each in operators}


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def test_own_seconds_leave_out_what_an_operator_calls(tmp_path: Path) -> None:
    write_piece(
        tmp_path,
        [
            event("step", 0, 100),
            event("matmul", 10, 70),
            event("mm", 20, 60),
            event("add", 70, 80),
            event("elsewhere", 0, 50, tid=8),
            event("a python function", 0, 90, cat="python_function"),
            event("the profiler itself", 0, 90, cat="Trace", tid="Profiler"),
            event("gpu", 30, 55, cat="kernel"),
        ],
    )
    found = join(tmp_path, tmp_path / "trace.json.gz")
    assert {each.name: round(each.self_seconds * 1e6, 6) for each in found} == {
        "mm": 40, "elsewhere": 50, "step": 30, "gpu": 25, "matmul": 20, "add": 10,
    }  # fmt: skip
    assert [each.name for each in found][:2] == ["elsewhere", "mm"], "the most seconds first"
    assert all(each.calls == 1 and each.self_bytes is None for each in found)


def test_an_event_that_ends_behind_its_parent_takes_only_its_part(tmp_path: Path) -> None:
    """The native phases are stamped by another clock than torch's, a microsecond apart."""
    sums = Sums()
    sums.add([Event("X", "outer", "cpu_op", ts=0, dur=10), Event("X", "inner", "cpu_op", ts=4, dur=8)])
    assert by_name(sums.operators())["outer"].self_seconds == pytest.approx(4e-6)


def test_native_phases_are_operators_and_events(tmp_path: Path) -> None:
    marks = [(0, 2_000), (1, 5_000), (2, 9_000), (0, 20_000), (1, 26_000)]
    write_piece(tmp_path, [event("native::step", 0, 40)], marks)
    found = by_name(join(tmp_path, tmp_path / "out.gz"))
    assert found["native::one"].calls == 2
    assert found["native::one"].self_seconds == pytest.approx(9e-6)
    assert found["native::two"].self_seconds == pytest.approx(4e-6)
    assert found["native::step"].self_seconds == pytest.approx(27e-6)
    events = read(tmp_path / "out.gz")["traceEvents"]
    drawn = [(each["name"], each["ts"], each["dur"], each["tid"]) for each in events if "one" in each["name"]]
    assert drawn == [("native::one", 2.0, 3.0, 7), ("native::one", 20.0, 6.0, 7)]


def test_bytes_are_those_that_an_operator_allocates_itself(tmp_path: Path) -> None:
    def allocation(at: float, size: int) -> dict[str, Any]:
        return event("[memory]", at, at, ph="i", cat="cpu_instant_event", args={"Bytes": size})

    events = [event("outer", 0, 50), event("inner", 10, 20)]
    write_piece(tmp_path, [*events, allocation(15, 100), allocation(16, -100), allocation(30, 7), allocation(60, 9)])
    found = by_name(join(tmp_path, tmp_path / "out.gz"))
    assert {name: each.self_bytes for name, each in found.items()} == {"outer": 7, "inner": 100}


def test_pieces_become_one_trace(tmp_path: Path) -> None:
    for number in range(3):
        write_piece(tmp_path, [event("mm", 100 * number, 100 * number + 10)], number=number)
    found = join(tmp_path, tmp_path / "out.gz")
    assert found[0].calls == 3
    assert found[0].self_seconds == pytest.approx(30e-6)
    trace = read(tmp_path / "out.gz")
    assert [each["ts"] for each in trace["traceEvents"]] == [0, 100, 200]
    assert trace["baseTimeNanoseconds"] == BASE


@pytest.mark.parametrize("damage", ["nothing", "cut", "clock"])
def test_the_worker_says_what_is_wrong_and_leaves_no_pieces(tmp_path: Path, damage: str) -> None:
    if damage != "nothing":
        path = write_piece(tmp_path, [event("mm", 0, 10)])
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    if damage == "clock":
        write_piece(tmp_path, [event("mm", 0, 10)], number=1, base=BASE + 1)
    command = [sys.executable, "-m", "service.observability.profiles.worker", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert {"nothing": "nothing was recorded", "cut": "truncated", "clock": "clock"}[damage] in ended.stderr
    assert not list(tmp_path.glob("piece-*"))


def test_the_worker_prints_the_operators(tmp_path: Path) -> None:
    write_piece(tmp_path, [event("mm", 0, 10)])
    out = subprocess.run(
        [sys.executable, "-m", "service.observability.profiles.worker", str(tmp_path)], capture_output=True, check=True
    )
    assert msgspec.json.decode(out.stdout, type=list[Operator])[0].name == "mm"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.sampled_from("abc")), max_size=30), st.integers())
def test_own_seconds_sum_to_the_time_in_which_anything_ran(spans: list[tuple[int, int, str]], seed: int) -> None:
    """Of events that lie in each other or apart, as those of one thread do."""
    nested = list[tuple[int, int, str]]()
    for begin, length, name in sorted(spans, key=lambda each: -each[1]):
        end = begin + length
        if all(end <= b or e <= begin or (b <= begin and end <= e) for b, e, _ in nested):
            nested.append((begin, end, name))
    events = [Event("X", name, "cpu_op", ts=begin, dur=end - begin) for begin, end, name in nested]
    random.Random(seed).shuffle(events)
    sums = Sums()
    sums.add(events)
    covered = {tick for begin, end, _ in nested for tick in range(begin, end)}
    assert sum(each.self_seconds for each in sums.operators()) == pytest.approx(len(covered) * 1e-6)


def test_the_largest_difference_is_first() -> None:
    a = Measured([Operator("same", 10, 5.0), Operator("gone", 10, 0.2), Operator("faster", 10, 1.0)], steps=10)
    b = Measured([Operator("same", 20, 10.0), Operator("planted", 20, 4.0), Operator("faster", 40, 0.4)], steps=20)
    found = differences(a, b)
    assert [each.name for each in found] == ["planted", "faster", "gone", "same"]
    assert found[0] == type(found[0])("planted", 0.0, 0.2, 0.2, 0.0, 1.0)
    assert found[1].difference_seconds_per_step == pytest.approx(-0.08)
    assert found[1].b_calls_per_step == 2.0
    assert found[3].difference_seconds_per_step == 0.0
