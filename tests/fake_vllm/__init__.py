"""An interpreter that finds the fake vLLM beside this file, as `.venv-vllm/bin/python` finds the real one."""

from __future__ import annotations

import sys
from pathlib import Path

DIE, HANG, RAISE = 90, 91, 92
VOCABULARY = 97


def interpreter(directory: Path, *, has_vllm: bool = True, release: str = "") -> Path:
    """Returns the path of an interpreter in `directory`, with the fake vLLM or without one; with one that says that it
    is another `release`."""
    script = directory / ("python-with-vllm" if has_vllm else "python-without")
    library = str(Path(__file__).parent if has_vllm else directory / "nothing")
    if release:
        facts = directory / "other" / f"vllm-{release}.dist-info" / "METADATA"
        facts.parent.mkdir(parents=True)
        facts.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
        library = f"{directory / 'other'}:{library}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{library}" exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


def expected(prompt: list[int], count: int, seed: int = 0) -> list[int]:
    """Returns what the fake vLLM gives for a prompt, computed without it."""
    context = list(prompt)
    for _ in range(count):
        context.append((7 * context[-1] + len(context) + seed) % VOCABULARY)
    return context[len(prompt) :]
