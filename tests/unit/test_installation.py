"""make on a machine that lacks something says one sentence with the way out; requirements.txt is what serving needs,
pinned as tested; and the wheel has every file that is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.wheel import built_wheel

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "service" / "engine" / "runner" / "native"
ANOTHER = """#!/bin/sh
if [ "$1" = -V ]; then echo Python {version}; exit; fi
exec "{python}" -c 'import sys; sys.version_info = ({numbers}); exec(sys.argv[1])' "$2"
"""
"""A Python that says it is of another version."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def make(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs make as a person does, also where another make runs the tests: `make -i nightly` would ignore its errors."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env={**own, **variables}, capture_output=True, text=True, check=False
    )


def python(directory: Path, version: str) -> Path:
    path = directory / f"python{version}"
    path.write_text(ANOTHER.format(version=version, python=sys.executable, numbers=version.replace(".", ", ")))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["2.7.18", "3.10.13", "3.15.0", "4.0.1"])
def test_a_python_too_old_or_too_new(tmp_path: Path, version: str) -> None:
    path = python(tmp_path, version)
    done = make("install", f"PYTHON={path}", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert f"{path} is Python {version}, and Dosirak needs 3.11 to 3.14: install Python 3.11 or name" in done.stdout
    assert not (tmp_path / "venv").exists() and "Traceback" not in done.stderr


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    done = make("install", "PYTHON=python3.11-nowhere", f"VENV={tmp_path}/venv")
    assert done.returncode != 0 and "python3.11-nowhere is missing: install Python 3.11 or name" in done.stdout


def test_pip_and_make_take_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info[:2] < (3, 15)" in (ROOT / "Makefile").read_text()


def test_without_a_compiler_it_says_so_goes_on_and_tries_again(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "touch", "mkdir"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    native = tmp_path / "native"
    shutil.copytree(NATIVE, native, ignore=shutil.ignore_patterns("built", "__pycache__"))
    program = f"import runpy, sys; sys.argv[0] = 'build'; runpy.run_path('{native}/build.py', run_name='__main__')"
    launcher = tmp_path / "venv" / "bin" / "python"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f'#!{shutil.which("bash")}\nshift 2\nexec "{sys.executable}" -c "{program}" "$@"\n')
    launcher.chmod(0o755)
    built = native / "built" / ".built"
    variables = {"PATH": str(tools), "MAKEFLAGS": ""}
    command = [shutil.which("make") or "make", f"VENV={tmp_path}/venv", f"NATIVE={native}", str(built)]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "torch operations will serve, several times slower: no C++ compiler; install one of g++" in done.stderr
        assert not built.exists()


CONFIGURED = """:env:.cert='/certificates.pem'
global.extra-index-url='https://second.test/simple'
global.find-links='/wheels'
global.index-url='https://mirror.test/simple'
"""


@pytest.mark.parametrize("fails", [False, True])
def test_uv_gets_what_pip_is_told_of_and_pip_does_what_uv_cannot(tmp_path: Path, fails: bool) -> None:
    programs, said, configured = tmp_path / "venv" / "bin", tmp_path / "said", tmp_path / "configured"
    programs.mkdir(parents=True)
    configured.write_text(CONFIGURED)
    scripts = {
        "python": f'case "$*" in *"config list") cat {configured};; *) echo "python $*" >>{said};; esac',
        "uv": f'echo "uv $*" >>{said}; env | grep -E "^(UV|SSL)_" >>{said}; exit {int(fails)}',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    done = make(f"{tmp_path}/venv/.serves", f"VENV={tmp_path}/venv", "MAKEFLAGS=", SSL_CERT_FILE="")
    assert done.returncode == 0, done.stderr
    lines = said.read_text().splitlines()
    words = "-c constraints.txt torch==2.13.0 -e ."
    assert f"uv pip install --python {programs}/python {words}" in lines
    assert {
        "SSL_CERT_FILE=/certificates.pem",
        "UV_DEFAULT_INDEX=https://mirror.test/simple",
        "UV_FIND_LINKS=/wheels",
        "UV_INDEX=https://second.test/simple",
    } <= set(lines)
    assert lines[-1].startswith("python -m pip install") == fails and lines[-1].endswith(words) == fails


def test_pip_installs_where_uv_cannot_be_had(tmp_path: Path) -> None:
    python, said = tmp_path / "venv" / "bin" / "python", tmp_path / "said"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >>{said}\ncase "$*" in *" uv") exit 1;; esac\n')
    python.chmod(0o755)
    done = make(f"{tmp_path}/venv/.serves", f"VENV={tmp_path}/venv", "MAKEFLAGS=")
    assert done.returncode == 0 and "uv cannot be had here; pip installs" in done.stdout, done.stderr
    last = said.read_text().splitlines()[-1]
    assert last.startswith("-m pip install") and last.endswith("-c constraints.txt torch==2.13.0 -e .")


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines if line and line[0] != "#"}


def needed(wanted: Iterable[str]) -> set[str]:
    """All packages that these ask for on this platform, and those that they ask for."""
    waiting, seen = [Requirement(each) for each in wanted], set[tuple[str, frozenset[str]]]()
    while waiting:
        package = waiting.pop()
        key = (canonicalize_name(package.name), frozenset(package.extras))
        if key not in seen:
            seen.add(key)
            waiting += [each for each in map(Requirement, requires(package.name) or ()) if _applies(each, package)]
    return {name for name, _ in seen}


def _applies(asked: Requirement, by: Requirement) -> bool:
    return asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in (*by.extras, ""))


def test_they_are_what_the_project_needs_to_serve() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = needed([*PROJECT["dependencies"], *extras["postgres"], *extras["s3"]])
    known = pins("requirements.txt")
    # packages that torch and its like ask for where there is a GPU are left to their own pins
    assert set(known) == wanted & set(pins("constraints.txt"))


def test_they_are_pinned_as_tested() -> None:
    assert pins("requirements.txt").items() <= pins("constraints.txt").items()


def test_nothing_that_tests_or_measures_is_among_them() -> None:
    extras = PROJECT["optional-dependencies"]
    tools = {canonicalize_name(Requirement(each).name) for each in extras["dev"] + extras["load"]}
    serving = needed([*PROJECT["dependencies"], *extras["postgres"], *extras["s3"]])
    assert not set(pins("requirements.txt")) & (tools - serving)
    assert not {"pytest", "mypy", "ruff", "hypothesis", "locust"} & set(pins("requirements.txt"))


def test_every_file_that_is_read_is_in_the_wheel(tmp_path: Path) -> None:
    held = set(zipfile.ZipFile(built_wheel(tmp_path)).namelist())
    for folder in (
        "service/api/http/templates",
        "service/engine/runner/native/src",
        "service/ui",
        "models/demo/weights",
    ):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in (".pyc", ".md"))
        wanted = {str(path.relative_to(ROOT)) for path in files}
        assert wanted and wanted <= held, wanted - held


def test_what_make_starts_keeps_its_bytecode(tmp_path: Path) -> None:
    (programs := tmp_path / "venv" / "bin").mkdir(parents=True)
    (programs / "dosirak").write_text("#!/bin/sh\nenv\n")
    (programs / "dosirak").chmod(0o755)
    (tmp_path / "venv" / ".serves").touch()
    old = "--old-file=" + str(tmp_path / "venv" / ".serves")
    done = make("serving", f"VENV={tmp_path}/venv", old, "MAKEFLAGS=", PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout and "HOME=" in done.stdout


def test_a_model_with_a_space_in_its_name_is_one_word(tmp_path: Path) -> None:
    done = make("serving", "--dry-run", f"VENV={tmp_path}/venv", "MAKEFLAGS=", "MODEL=./my model")
    assert f"{tmp_path}/venv/bin/dosirak serve './my model'" in done.stdout, done.stderr
