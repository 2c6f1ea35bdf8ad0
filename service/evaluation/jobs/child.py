"""A child job is a job that a command runs in a process of its own and waits for. No server knows of it.

torch and the memory of a conversion end with that process, so that the command can go on to serve. A person waits, so
it has the priority of the command.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from models.errors import InvalidSource
from models.progress import Progress, silent
from service.evaluation.jobs.job import WORKER, WorkerLine


def run(
    kind: str,
    arguments: Mapping[str, object],
    env: Mapping[str, str],
    progress: Progress = silent,
    worker: str = WORKER,
) -> dict[str, Any]:
    """Returns the job's result. Raises InvalidSource with the job's own sentence, or about a process that ended without
    one. The process dies with this one; a terminal's Ctrl-C reaches it through this one."""
    command = (sys.executable, "-m", worker)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
    ) as process:
        try:
            return _followed(process, kind, arguments, progress)
        finally:
            process.kill()


def _followed(
    process: subprocess.Popen[bytes], kind: str, arguments: Mapping[str, object], progress: Progress
) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None  # both are pipes
    process.stdin.write(msgspec.json.encode({"kind": kind, "arguments": arguments, "awaited": True}))
    process.stdin.close()
    for text in process.stdout:
        line = msgspec.json.decode(text, type=WorkerLine)
        if line.error is not None:
            raise InvalidSource(line.error)
        if line.result is not None:
            return line.result
        progress(line.progress, line.doing)
    code = process.wait()
    killed = "; the system may have ended it for want of memory: free some and start again" if code == -9 else ""
    raise InvalidSource(f"The process of the {kind} ended with status {code} and gave no reason{killed}")
