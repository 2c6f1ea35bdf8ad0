"""A trial compiles grammars that clients sent, each in a process of its own: `python -m service.text.grammars.trial`.

Requests and verdicts are frames on standard input and output: 4 bytes of length, then UTF-8. A verdict is "" for a
grammar that an engine may compile, else the reason why not. A grammar that takes more than CPU_SECONDS or MORE_MEMORY
ends its own process only. The main process ends when standard input does.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from service.text.grammars.ends import require_end
from service.text.grammars.matching import VocabularyGrammars

CPU_SECONDS: Final = 0.12
MORE_MEMORY: Final = 128 * 1024 * 1024
STACK: Final = 1024 * 1024  # half of what an engine's threads have at least: what fits here does not overflow there
_LONGEST_SECONDS: Final = 5.0
_NICENESS: Final = 5  # running answers first
_TOO_LONG: Final = f"it takes more than {CPU_SECONDS * 1000:.0f} ms to compile: make it smaller"
_TOO_LARGE: Final = f"it takes more than {MORE_MEMORY >> 20} MiB to compile: make it smaller"
_TOO_DEEP: Final = "it is nested too deep, or too long, to compile: make it smaller"
_REASONS: Final = {
    signal.SIGPROF: _TOO_LONG,
    signal.SIGKILL: _TOO_LONG,
    signal.SIGABRT: _TOO_LARGE,
    signal.SIGSEGV: _TOO_DEEP,
}


def read_frame(stream: BinaryIO) -> str | None:
    """Returns the next frame's text; None at the end of the stream."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    return stream.read(int.from_bytes(header, "big")).decode()


def frame(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(4, "big") + body


def tried(grammars: VocabularyGrammars, text: str) -> str:
    """Compiles a grammar in a process of its own. Returns the verdict."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _compile(grammars, text, writes)
    os.close(writes)
    ready = select.select([reads], [], [], _LONGEST_SECONDS)[0]
    said = os.read(reads, 1 << 16) if ready else b""
    os.close(reads)
    if not said:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        return said[1:].decode(errors="replace")
    return _REASONS.get(signal.Signals(os.WTERMSIG(status)), _TOO_LONG) if os.WIFSIGNALED(status) else _TOO_LARGE


def _compile(grammars: VocabularyGrammars, text: str, writes: int) -> None:
    """Writes "+" or "-" with the reason, and ends the process."""
    try:
        _limit()
        grammars.compile(text)
        require_end(text)
        verdict = "+"
    except ValueError as error:
        verdict = f"-{error}"
    except BaseException as error:
        verdict = f"-it could not be compiled: {type(error).__name__}"
    with suppress(OSError):  # nobody reads it any more
        os.write(writes, verdict.encode(errors="replace")[: 1 << 16])
    os._exit(0)


def _limit() -> None:
    for number in (signal.SIGPROF, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, used + MORE_MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a failed allocation or a panic prints
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    grammars = VocabularyGrammars.of_letters()
    grammars.compile('start: "a"')  # what the first compilation sets up
    while (text := read_frame(sys.stdin.buffer)) is not None:
        sys.stdout.buffer.write(frame(tried(grammars, text)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
