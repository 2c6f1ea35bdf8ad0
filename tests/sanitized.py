"""The tests that run kernels in their own process, on kernels that stop at the first access outside of their memory.

`python -m tests.sanitized [pytest's arguments]` builds the sanitized kernels of this processor and runs TESTS in a
process that has the sanitizers' libraries before anything else. Tests that start servers or a browser are not among
them: not every program lives with these libraries.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

COMPILER: Final = "g++"
VARIABLE: Final = "SANITIZED_KERNELS"
OPTIONS: Final = {
    # torch and Python keep memory until they end; what nobody has written is NaN
    "ASAN_OPTIONS": f"detect_leaks=0:malloc_fill_byte=255:max_malloc_fill_size={1 << 31}",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
TESTS: Final = (
    "tests/golden",
    "tests/property/test_kernel_bounds.py",
    "tests/property/test_sampling_random.py",
    *(
        f"tests/unit/test_{name}.py"
        for name in ("adapters", "attention", "blocks", "linear", "native", "rounding", "sampler")
    ),
)
APART: Final = "not test_vllm and not test_shared_weights"
"""vLLM has kernels of its own, and the tests of shared weights start processes."""


def runtime() -> str | None:
    """Returns the sanitizers' libraries as LD_PRELOAD takes them; None where the compiler has none."""
    found = [_asked(f"-print-file-name={name}") for name in ("libasan.so", "libubsan.so")]
    return ":".join(found) if all(Path(path).is_absolute() for path in found) else None


def environment(libraries: str) -> dict[str, str]:
    return os.environ | OPTIONS | {"LD_PRELOAD": libraries}


def _asked(option: str) -> str:
    return subprocess.run([COMPILER, option], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: list[str]) -> int:
    from service.engine.runner.native import build

    libraries = runtime()
    if libraries is None:
        print(f"{COMPILER} has no libasan or libubsan: install them", file=sys.stderr)
        return 1
    build.build(COMPILER)  # the plain kernels say which instruction sets run here
    from tests.kernels import LIBRARIES

    build.build(COMPILER, LIBRARIES, sanitized=True)
    command = [sys.executable, "-m", "pytest", *TESTS, "-k", APART, "--timeout=3600", *arguments]
    return subprocess.run(command, env=environment(libraries) | {VARIABLE: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
