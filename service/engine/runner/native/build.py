"""The build compiles `src/` into shared libraries, one per instruction set.

    python -m service.engine.runner.native.build
    python -m service.engine.runner.native.build --fastest     the one that this machine would choose

It knows a compiler and files. It uses neither torch nor Python's headers, so it takes seconds and fits every version of
both. A library's name holds a hash of its sources, so a stale library is never loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

COMMAND = f"python {shlex.quote(str(Path(__file__).absolute()))}"
"""What builds the libraries of this very code, in any directory: a bento and a wheel have code of their own."""
SOURCES = Path(__file__).parent / "src"
BUILT = Path(__file__).parent / "built"
UNDER_WAY = ".under-way"
"""A file of BUILT that is locked while a build runs. The lock ends with its process, however that ends."""
CPUINFO = Path("/proc/cpuinfo")
COMPILERS = ("g++", "c++", "clang++")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fPIC"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas"]
SANITIZERS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined,float-cast-overflow"]
SANITIZERS += ["-D_GLIBCXX_ASSERTIONS", "-D_GLIBCXX_SANITIZE_VECTOR"]
"""Flags for a library that stops at the first access outside of its memory. Only a process with the compiler's ASan
runtime preloaded can load it; no server does."""
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
MACHINE = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
"""The architecture of this process, as Linux spells it."""
_AVX512 = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
_DOTPROD = "-march=armv8.2-a+dotprod"
_OF_MACHINE: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "amx": [*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
        "avx512-bf16": [*_AVX512, "-mavx512bf16"],
        "avx512": _AVX512,
        "avx2": ["-mavx2", "-mfma"],
    },
    "aarch64": {"neon-i8mm": [f"{_DOTPROD}+i8mm+bf16"], "neon-dotprod": [_DOTPROD]},
}


def levels_of(machine: str) -> dict[str, list[str]]:
    """Returns the flags of each instruction set of a machine, the most capable first."""
    return {**_OF_MACHINE.get(machine, {}), "portable": []}


LEVELS = levels_of(MACHINE)
"""Flags of each instruction set, the most capable first. `dosirak_supported` of a library says whether it runs here."""

_AVX512_FEATURES = frozenset({"avx512bw", "avx512vl", "avx512dq", "avx512_vnni"})
FEATURES: dict[str, frozenset[str]] = {
    "amx": _AVX512_FEATURES | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
    "avx512-bf16": _AVX512_FEATURES | {"avx512_bf16"},
    "avx512": _AVX512_FEATURES,
    "avx2": frozenset({"avx2", "fma"}),
    "neon-i8mm": frozenset({"asimddp", "i8mm", "bf16"}),
    "neon-dotprod": frozenset({"asimddp"}),
    "portable": frozenset(),
}
"""What a level needs of a processor, as Linux spells it; the same as `dosirak_supported` asks for."""


def preferred(vendor: str) -> list[str]:
    """Returns the levels, the fastest first, for a processor of `vendor`, as /proc/cpuinfo spells it. `vdpbf16ps` makes
    products at half of fp32's rate or less on Intel's processors, and at twice that rate on AMD's."""
    levels = list(LEVELS)
    if vendor == "GenuineIntel" and "avx512" in levels:
        levels.remove("avx512-bf16")
        levels.insert(levels.index("avx512") + 1, "avx512-bf16")
    return levels


UNKNOWN = ("unrecognized command-line option", "unknown argument", "invalid feature modifier", "unsupported argument")
"""How a compiler that is older than an instruction set refuses it."""


class CannotBuild(Exception):
    """There is no compiler, or it failed. The message has the compiler's output."""


def library_path(level: str, sanitized: bool = False, machine: str = MACHINE) -> Path:
    """Returns the path of the library of `level` for `machine`, built from the present sources."""
    digest = hashlib.sha256(" ".join([machine, *_flags(level, sanitized, machine)]).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return BUILT / f"{level}{'-sanitized' if sanitized else ''}-{digest.hexdigest()[:12]}.so"


def build(
    compiler: str | None = None,
    levels: Iterable[str] | None = None,
    sanitized: bool = False,
    machine: str = MACHINE,
) -> list[Path]:
    """Compiles missing libraries of `levels` (None: all) and removes stale ones. `compiler` makes code for `machine`.
    Returns the libraries, without those of instruction sets that the compiler does not know. Raises CannotBuild."""
    chosen = levels_of(machine) if levels is None else levels
    paths = {level: library_path(level, sanitized, machine) for level in chosen}
    if _missing(paths):
        with _alone():
            missing = _missing(paths)
            command = compiler or next(filter(None, map(shutil.which, COMPILERS)), None)
            if command is None:
                raise CannotBuild(f"no C++ compiler; install one of {', '.join(COMPILERS)} and run make install")
            _compile(command, missing, {level: _flags(level, sanitized, machine) for level in missing})
    for stale in set(BUILT.glob("*.so")) - set(_current()):
        stale.unlink(missing_ok=True)
    return [path for path in paths.values() if path.exists()]


def build_fastest(compiler: str | None = None, cpuinfo: str | None = None) -> list[Path]:
    """Compiles the one library that the engine would choose on this machine, a fifth of the work. `cpuinfo` is what
    Linux writes of its processor (None: what CPUINFO holds). An instruction set that the compiler does not know, or
    that the system holds back, gives way to the next. Raises CannotBuild."""
    if cpuinfo is None:
        cpuinfo = CPUINFO.read_text() if CPUINFO.exists() else ""
    words = frozenset(cpuinfo.split())
    for level in preferred("GenuineIntel" if "GenuineIntel" in words else ""):
        if FEATURES[level] <= words and (built := build(compiler, [level])) and _runs(built[0]):
            return built
    return []


def _runs(path: Path) -> bool:
    try:
        return bool(ctypes.CDLL(str(path)).dosirak_supported())
    except (
        OSError
    ):  # what it links to is missing here; the engine loads torch's OpenMP first, and says what it cannot open
        return True


def _missing(paths: dict[str, Path]) -> dict[str, Path]:
    return {level: path for level, path in paths.items() if not path.exists()}


@contextmanager
def _alone() -> Iterator[None]:
    """Waits for another build, and lets no other begin meanwhile. Raises CannotBuild."""
    try:
        BUILT.mkdir(exist_ok=True)
        mark = (BUILT / UNDER_WAY).open("a")
    except OSError as error:
        raise CannotBuild(str(error)) from error
    with mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield


def await_build() -> None:
    """Waits until no build runs, as `make serve` begins one beside the fetch of a model. Where none runs, or none ever
    ran, returns at once."""
    with suppress(OSError), (BUILT / UNDER_WAY).open() as mark:
        fcntl.flock(mark, fcntl.LOCK_SH)


def _current() -> Iterator[Path]:
    """Yields the paths of all libraries that the present sources can become."""
    for machine in (MACHINE, *_OF_MACHINE):
        for level in levels_of(machine):
            for sanitized in (False, True):
                yield library_path(level, sanitized, machine)


def _flags(level: str, sanitized: bool, machine: str) -> list[str]:
    return [*FLAGS, *(SANITIZERS if sanitized else ()), *levels_of(machine)[level]]


def _compile(compiler: str, paths: dict[str, Path], flags: dict[str, list[str]]) -> None:
    """Compiles all sources of all libraries at once. Each library appears whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(dir=BUILT) as name:
            folder = Path(name)
            compiling = {
                level: [
                    _begin(compiler, [*flags[level], "-c", str(each)], folder / f"{level}-{each.stem}.o")
                    for each in _units()
                ]
                for level in paths
            }
            for step in chain.from_iterable(compiling.values()):
                step.process.wait()
            for level, units in compiling.items():
                if _succeeded(compiler, level, units):
                    objects = [str(unit.output) for unit in units]
                    linking = _begin(compiler, [*flags[level], "-shared", *objects], folder / level)
                    if _succeeded(compiler, level, [linking]):
                        linking.output.replace(paths[level])
    except OSError as error:
        raise CannotBuild(str(error)) from error


class _Step(NamedTuple):
    """A call of the compiler, what it makes, and the file of what it says: a pipe that nobody reads would stop it."""

    process: subprocess.Popen[bytes]
    output: Path
    said: Path


def _begin(compiler: str, arguments: list[str], output: Path) -> _Step:
    said = output.with_name(f"{output.name}.txt")
    with said.open("wb") as file:
        process = subprocess.Popen([compiler, *arguments, "-o", str(output)], stderr=file)
    return _Step(process, output, said)


def _succeeded(compiler: str, level: str, steps: list[_Step]) -> bool:
    """Returns False where the compiler does not know the instruction set. Raises CannotBuild where it failed."""
    failed = [step for step in steps if step.process.wait()]
    for step in failed:
        text = step.said.read_text(errors="replace")
        if not any(words in text for words in UNKNOWN):
            raise CannotBuild(f"{compiler} failed for {level}:\n{text[-2000:]}")
    return not failed


def _units() -> list[Path]:
    """Returns the files to compile; each includes its headers."""
    return sorted(SOURCES.glob("*.cpp"))


def _sources() -> list[Path]:
    return sorted([*SOURCES.glob("*.h"), *_units()])


def main() -> int:
    """Builds the kernels. It never fails an installation: without kernels the engine serves with torch operations."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--compiler", help=f"default: the first of {', '.join(COMPILERS)} on the path")
    parser.add_argument("--fastest", action="store_true", help="build only what is the fastest on this machine")
    parser.add_argument("--strict", action="store_true", help="exit 1 when the kernels cannot be built")
    parser.add_argument(
        "--sanitize", action="store_true", help="build the libraries that `make nightly` fuzzes instead"
    )
    machines = sorted({MACHINE, *_OF_MACHINE})
    parser.add_argument("--machine", default=MACHINE, choices=machines, help="what a cross compiler makes code for")
    options = parser.parse_args()
    if options.fastest and (options.sanitize or options.machine != MACHINE):
        parser.error("--fastest is of this machine: leave out --sanitize and --machine")
    try:
        if options.fastest:
            levels, built = list[str](), build_fastest(options.compiler)
        else:
            levels = [*levels_of(options.machine)]
            built = build(options.compiler, levels, options.sanitize, options.machine)
        for path in built:
            print(f"native kernels: {path.name}")
        for level in levels:
            if library_path(level, options.sanitize, options.machine) not in built:
                print(f"native kernels: none for {level}, which the compiler is too old for")
    except CannotBuild as error:
        print(
            f"native kernels were not built, so torch operations will serve, several times slower: {error}",
            file=sys.stderr,
        )
        return int(options.strict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
