"""Rotary tables take memory as sequences come to their rows, and no row depends on when that is."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from service.engine.runner.forwards.blueprint import Rotary, _Tables

ROTARY = Rotary(tuple(10000.0 ** (-at / 64) for at in range(64)), 1.25)
CPU = torch.device("cpu")


def memory() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def test_a_million_positions_take_no_memory_before_they_are_used() -> None:
    before = memory()
    tables = _Tables((ROTARY,), 1 << 20, CPU)
    tables.reach(5000)
    assert memory() - before < 60 << 20, "all rows are 1 GiB"


def test_rows_are_those_of_the_formula_however_they_are_reached() -> None:
    whole, growing = _Tables((ROTARY,), 10_000, CPU), _Tables((ROTARY,), 10_000, CPU)
    whole.reach(10_000)
    for positions in (1, 4096, 4097, 9000, 20_000):
        growing.reach(positions)
    angles = torch.arange(10_000)[:, None].float() * torch.tensor(ROTARY.frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    for found, other, wanted in zip(growing.tables[0], whole.tables[0], (angles.cos(), angles.sin()), strict=True):
        assert torch.equal(found, other) and torch.equal(found, wanted * 1.25)
