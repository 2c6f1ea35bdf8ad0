"""The host's cores and memory are read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from service import host


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 300\ninactive_file 250\n"}, 550),
        ({"memory.max": "1000", "memory.current": "700"}, 300),
        ({"memory.max": "1000", "memory.current": "1700"}, 0),
    ],
)
def test_files_that_the_kernel_keeps_are_free_memory(
    files: dict[str, str], available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    assert host.available_memory() == available
