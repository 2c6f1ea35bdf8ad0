"""Trimming removes from installed packages what no answer needs: tests, headers, programs, stubs, and the symbols that
only debuggers read. It knows paths alone.

`python3 trim.py SITE_PACKAGES`. The smoke run of `docker/build-local.sh` shows that what is left serves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WHOLE = (
    "torch/include",  # headers, for C++ extensions
    "torch/share",  # CMake files
    "torch/test",  # programs and models of torch's own tests
    "torch/utils/benchmark/examples",
    "torchgen/packaged",  # templates that torch itself is built from
    "numpy/_core/include",
    "numpy/distutils",
    "numpy/f2py",
    "sqlalchemy/testing",
)
"""Below the packages' folder."""
PROGRAMS = ("torch/bin", "torch_shm_manager")
"""A folder of programs of torch's own tests, and the one among them that `import torch` looks for."""
TESTS = ("sympy", "networkx", "mpmath", "tornado", "zmq", "greenlet", "pyparsing", "psutil")
"""Packages whose folders `tests` and `test` nothing else imports."""
SUFFIXES = (".a", ".pyi", ".pxd", ".pyx", ".h", ".hpp", ".cuh", ".cmake", ".c", ".cpp")
"""What compilers and type checkers read. A package's own folder may be read at run time: see KEPT."""
KEPT = ("service", "models", "triton")
LIBRARIES = ("libtorchbind_test.so", "libjitbackend_test.so", "libbackend_with_compiler.so", "libaoti_custom_ops.so")
"""Of torch's own tests."""
UNTOUCHED = (".libs", "nvidia", "triton")
"""Ends of folders' names whose libraries keep their symbols: they were moved after they were linked, or have none."""


def trim(packages: Path) -> None:
    for path in unneeded(packages):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for bytecode in [*packages.rglob("__pycache__")]:
        shutil.rmtree(bytecode)
    libraries = [path for path in packages.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(strip, [path for path in libraries if not is_untouched(path.relative_to(packages))]))


def unneeded(packages: Path) -> list[Path]:
    """Returns files and folders to remove, none of them inside of another."""
    folder, needed = PROGRAMS
    found = {packages / name for name in WHOLE}
    found |= {path for path in (packages / folder).glob("*") if path.name != needed}
    found |= {path for package in TESTS for name in ("tests", "test") for path in (packages / package).rglob(name)}
    found |= {packages / "torch" / "lib" / library for library in LIBRARIES}
    files = (path for path in packages.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    found |= {path for path in files if path.relative_to(packages).parts[0] not in KEPT}
    return sorted(path for path in found if path.exists() and not found & set(path.parents))


def is_untouched(library: Path) -> bool:
    return library.parts[0].endswith(UNTOUCHED)


def strip(library: Path) -> None:
    """Removes symbols that are not linked by; the file stays as it is where there were none."""
    stripped = library.with_name(library.name + ".stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", stripped, library], check=True)
    if stripped.stat().st_size < library.stat().st_size:
        stripped.chmod(library.stat().st_mode)
        stripped.replace(library)
    else:
        stripped.unlink()


if __name__ == "__main__":
    trim(Path(sys.argv[1]))
