"""The peaks of a host: measured once, kept by what they depend on, and absent with a reason where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from service.engine.protocol.work import Peaks
from service.engine.runner import limits, peaks

CPU = torch.device("cpu")


def test_they_are_measured_once_a_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "peaks.json"
    found, why = peaks.peaks_of("fp32", CPU, str(file))
    assert found is not None and why == ""
    assert found.dtype == "fp32" and found.flops > 1e8 and found.bytes_per_second > 1e8
    [kept] = json.loads(file.read_bytes()).values()
    assert kept == {"bytes_per_second": found.bytes_per_second, "flops": {"fp32": found.flops}}
    monkeypatch.setattr(limits, "ways_of", lambda dtype, memory: pytest.fail("measured again"))
    assert peaks.peaks_of("fp32", CPU, str(file)) == (found, "")


def test_another_host_measures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ours = tmp_path / "peaks.json", 7.0e9
    file.write_text(json.dumps({"another host": {"bytes_per_second": 1.0, "flops": {"fp32": 1.0}}}))
    monkeypatch.setattr(peaks, "_cpu_flops", lambda dtype: ours)
    monkeypatch.setattr(peaks, "_bytes_per_second", lambda device: 3.0e9)
    expected = Peaks(dtype="fp32", flops=ours, bytes_per_second=3.0e9)
    assert peaks.peaks_of("fp32", CPU, str(file)) == (expected, "")
    assert len(json.loads(file.read_bytes())) == 2, "the other host's stay"
    monkeypatch.setattr(peaks, "_bytes_per_second", lambda device: pytest.fail("memory is the same for every dtype"))
    assert peaks.peaks_of("bf16", CPU, str(file))[0] == Peaks(dtype="bf16", flops=ours, bytes_per_second=3.0e9)


def test_threads_make_another_host(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = peaks._host(CPU)
        torch.set_num_threads(2)
        assert peaks._host(CPU) != one
    finally:
        torch.set_num_threads(before)


def test_without_a_file_they_are_measured_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = peaks.peaks_of("fp32", CPU, "")
    monkeypatch.setattr(limits, "ways_of", lambda dtype, memory: pytest.fail("measured again"))
    assert found is not None and peaks.peaks_of("fp32", CPU, "") == (found, "")


def test_peaks_that_cannot_be_measured_have_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(dtype: str, memory: torch.Tensor) -> list[limits.Way]:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(limits, "ways_of", broken)
    found, why = peaks.peaks_of("bf16", CPU, str(tmp_path / "peaks.json"))
    assert found is None
    assert why == "the peak of bf16 products could not be measured: could not create a primitive"


def test_a_damaged_or_unwritable_file_costs_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_cpu_flops", lambda dtype: 5.0e9)
    monkeypatch.setattr(peaks, "_bytes_per_second", lambda device: 3.0e9)
    (tmp_path / "peaks.json").write_text("{")
    for file in (tmp_path / "peaks.json", tmp_path / "missing" / "peaks.json"):
        assert peaks.peaks_of("fp32", CPU, str(file))[0] is not None


@pytest.mark.parametrize(
    ("precision", "dtype", "kernel", "expected"),
    [
        ("fp32", "fp32", "native", "fp32"),
        ("bf16", "bf16", "native", "bf16"),
        ("int8", "bf16", "native", "int8"),
        ("llm-int8", "bf16", "onednn", "int8"),
        ("int8", "bf16", "dequantized", "bf16"),
        ("int8-weight", "bf16", "native", "bf16"),
    ],
)
def test_the_dtype_is_that_of_the_products(
    precision: str, dtype: str, kernel: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "int8_kernel", lambda device: kernel)
    assert peaks.products_dtype(precision, dtype, CPU) == expected
