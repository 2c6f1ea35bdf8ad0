"""A limited child reads foreign files with little time, memory and disk, without secrets and, where the system allows
it, without a network. It is a process group of its own, and is killed as a whole.

    run("models.imports.text_trial", ...)  ──▶  python -m models.checkpoint.limited 20 … models.imports.text_trial …
    refuses, with a sentence               ◀──  "at" what is read now, "refused" why, "done"

A tokenizer that aborts, eats memory or never ends so ends its own child, and the import with a sentence.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Final

from models.errors import InvalidSource

_KEPT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Of the environment, which may hold keys, a child has these."""
_ONE_THREAD: Final = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_FILES: Final = 256
_NO_MEMORY: Final = 71
_NEW_USER_AND_NETWORK: Final = 0x10000000 | 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_AT, _REFUSED, _DONE = "at", "refused", "done"


@dataclass(frozen=True, slots=True)
class Limits:
    """Processor time, address space, and bytes of a file that a child may write. Three times the processor time is what
    it may take by the clock."""

    seconds: int = 20
    bytes: int = 2 << 30
    written: int = 0


def run(module: str, *arguments: str, subject: str, way_out: str, limits: Limits = Limits()) -> None:
    """Calls `main(*arguments)` of `module` in a limited child; `main` returns the sentence of a refusal, or "". Raises
    InvalidSource with that sentence, or with one about `subject`, which the child did not survive, and the way out."""
    command = [sys.executable, "-m", __name__, *map(str, astuple(limits)), module, *arguments]
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _ONE_THREAD
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            said, code = process.communicate(timeout=3 * limits.seconds)[0], process.returncode
        except subprocess.TimeoutExpired as error:
            said, code = error.stdout or b"", -signal.SIGXCPU
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    for line in said.decode(errors="replace").splitlines():
        kind, *words = line.split("\t")
        match kind, words:
            case "at", [subject, way_out]:
                continue
            case "refused", [sentence]:
                raise InvalidSource(sentence)
            case "done", []:
                return
    raise InvalidSource(f"{subject} {_why(code, limits)}; {way_out}")


def at(subject: str, way_out: str, seconds: float = 0.0) -> None:
    """Says in a child what is done from here on, for the sentence about what it does not survive. Of processor time it
    may take so many seconds, also in a library that lets no signal in; 0 for all that there are."""
    _say(_AT, subject, way_out)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _why(code: int, limits: Limits) -> str:
    """Returns the middle of the sentence about a child that ended with this status and no word."""
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"takes longer than {limits.seconds} seconds to load and use"
    if code == -signal.SIGPROF:
        return "takes too long"
    size = f"{limits.bytes / (1 << 30):g} GiB of memory"
    return f"needs more than {size}" if code == _NO_MEMORY else f"ends the process that reads it, which has {size}"


def _say(*words: str) -> None:
    print("\t".join(" ".join(word.split()) for word in words), flush=True)


def _limit(kind: int, most: int, beyond: int = 0) -> None:
    """Lowers a limit; nobody raises one. `beyond` is how much the hard one lies above."""
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most + beyond if hard == resource.RLIM_INFINITY else hard))


def _be_alone() -> None:
    """Leaves the network where the system lets a process do so, and dies with the process that started this one."""
    system = ctypes.CDLL(None)
    with suppress(AttributeError):  # of other systems than Linux
        system.unshare(_NEW_USER_AND_NETWORK)
        system.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    seconds, size, written = map(int, sys.argv[1:4])
    _limit(resource.RLIMIT_CPU, seconds, beyond=2)
    _limit(resource.RLIMIT_AS, size)
    _limit(resource.RLIMIT_FSIZE, written)
    _limit(resource.RLIMIT_NOFILE, _FILES)
    _limit(resource.RLIMIT_CORE, 0)
    _be_alone()
    try:
        refusal = importlib.import_module(sys.argv[4]).main(*sys.argv[5:])
    except MemoryError:
        os._exit(_NO_MEMORY)
    _say(*((_REFUSED, refusal) if refusal else (_DONE,)))


if __name__ == "__main__":
    main()
