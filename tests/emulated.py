"""`python -m tests.emulated` runs tests of the kernels of ARM's processors under QEMU. Words after it go to pytest.

    python -m tests.emulated
    python -m tests.emulated tests/golden/test_windows.py -k gemma2
    python -m tests.emulated --processor neoverse-n1

The kernels are compiled by a cross compiler. Python and its libraries come from Debian, packages with compiled parts as
wheels of the versions installed here; all other packages are those of this environment. What was fetched is kept in
~/.cache/dosirak-tests/aarch64. An emulated test takes about a hundred times as long.

Tests that start programs, such as an import's trial of a tokenizer, fail: the system starts no program of another
machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from loadtest.bench.cache import whole
from service.engine.runner.native import build

MACHINE: Final = "aarch64"
ROOT: Final = Path(__file__).parent.parent
CACHE: Final = Path("~/.cache/dosirak-tests").expanduser() / MACHINE
COMPILER: Final = "aarch64-linux-gnu-g++"
TOOLS: Final = {"qemu-aarch64": "qemu-user", COMPILER: "g++-aarch64-linux-gnu", "dpkg-deb": "dpkg", "apt-get": "apt"}
LIBRARIES: Final = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgomp1", "libstdc++6",
    "libgcc-s1", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1",
)  # fmt: skip
TORCH: Final = "torch==2.10.0"
"""The last one whose wheel for this machine is not built for CUDA."""
GRAMMARS: Final = "llguidance==1.6.1"
"""The last one with a wheel for this machine."""
COMPILED: Final = (
    "numpy", "msgspec", "safetensors", "tokenizers", "regex", "PyYAML", "psutil", "MarkupSafe", "pydantic_core",
    "hypothesis", "greenlet",
)  # fmt: skip
PLATFORMS: Final = tuple(f"manylinux{name}_aarch64" for name in ("2014", "_2_17", "_2_24", "_2_27", "_2_28"))
TESTS: Final = ("tests/unit/test_native.py", "tests/unit/test_attention.py")
NEEDS_A_COMPILER: Final = "not compiler and not build"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--processor", default="max", help="one that `qemu-aarch64 -cpu help` lists; max has everything"
    )
    options, words = parser.parse_known_args()
    if missing := [package for tool, package in TOOLS.items() if shutil.which(tool) is None]:
        raise SystemExit(f"this needs Debian's {', '.join(missing)}: apt-get install {' '.join(missing)}")
    whole(CACHE / "system", fetch_system)
    whole(CACHE / "packages", fetch_packages)
    for path in build.build(COMPILER, machine=MACHINE):
        print(path.name, flush=True)
    given = words or [*TESTS, "-k", NEEDS_A_COMPILER]
    command = ["qemu-aarch64", "-cpu", options.processor, str(CACHE / "system/usr/bin/python3.11"), "-m", "pytest"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--timeout=0", *given], cwd=ROOT, env=environment()
    ).returncode


def environment() -> dict[str, str]:
    """Of the emulated process: its own libraries and packages come first."""
    paths = (CACHE / "packages", ROOT, sysconfig.get_path("purelib"))
    return {
        **os.environ,
        "QEMU_LD_PREFIX": str(CACHE / "system"),
        "PYTHONHOME": str(CACHE / "system/usr"),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
    }


def fetch_system(to: Path) -> None:
    """Needs the rights to add an architecture to apt's lists."""
    for command in (["dpkg", "--add-architecture", "arm64"], ["apt-get", "update", "-qq"]):
        subprocess.run(command, check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", *(f"{name}:arm64" for name in LIBRARIES)], cwd=folder, check=True)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(to)], check=True)


def fetch_packages(to: Path) -> None:
    wanted = [TORCH, GRAMMARS, *(f"{name}=={version(name)}" for name in COMPILED)]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    abis = [word for name in ("cp311", "abi3", "none") for word in ("--abi", name)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.11",
        ]
        subprocess.run([*command, *platforms, *abis, "--dest", folder, *wanted], check=True)
        for wheel in Path(folder).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(to)


if __name__ == "__main__":
    sys.exit(main())
