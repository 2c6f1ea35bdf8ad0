"""What a peak has left goes back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from service.memory import release_now

MIB = 1 << 20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives pages back that lie between others")
def test_free_pages_between_allocations_that_stay_go_back() -> None:
    before = _resident()
    pieces = [bytes(1000) for _ in range(64_000)]
    stay = pieces[::1000]
    assert _resident() - before > 50 * MIB
    del pieces
    release_now()
    assert _resident() - before < 20 * MIB
    assert len(stay) == 64
