"""An interpreter that finds the fake vLLM beside this file, as `.venv-vllm/bin/python` finds the real one."""

from __future__ import annotations

import sys
from pathlib import Path

DIE, HANG, RAISE = 90, 91, 92
VOCABULARY = 97


def interpreter(directory: Path, *, has_vllm: bool = True) -> Path:
    """Returns the path of an interpreter in `directory`, with the fake vLLM or without one."""
    script = directory / ("python-with-vllm" if has_vllm else "python-without")
    library = Path(__file__).parent if has_vllm else directory / "nothing"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{library}" exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


def expected(prompt: list[int], count: int, seed: int = 0) -> list[int]:
    """Returns what the fake vLLM gives for a prompt, computed without it."""
    context = list(prompt)
    for _ in range(count):
        context.append((7 * context[-1] + len(context) + seed) % VOCABULARY)
    return context[len(prompt) :]
