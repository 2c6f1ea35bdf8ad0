"""A client's script runs in the client's own environment, and tells what it found as JSON."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients import environments

SCRIPTS: Final = Path(__file__).parent / "scripts"
SECONDS: Final = 240.0
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUTF8": "1"}
"""What keeps clients from asking others than our server."""
INHERITED: Final = ("HOME", "LANG", "PATH", "TMPDIR")


async def found_by(name: str, url: str, *arguments: str) -> dict[str, Any]:
    """Runs `scripts/<name>.py URL …` as a user of the client would, and returns what it prints last. Skips the test
    where the environment cannot be had."""
    output = await run(name, "python", "-I", str(SCRIPTS / f"{name.replace('-', '_')}.py"), url, *arguments)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


async def run(name: str, program: str, *arguments: str, **variables: str) -> str:
    """Runs a program of a client's environment, and returns what it prints. Of this process's variables it sees only
    those that every program needs: none of another test's, and no proxy."""
    try:
        interpreter = await asyncio.to_thread(environments.python, name)
    except environments.NotBuilt as error:
        pytest.skip(str(error))
    inherited = {each: os.environ[each] for each in INHERITED if each in os.environ}
    return await called(str(interpreter.parent / program), *arguments, **inherited, **variables)


async def called(*command: str, **variables: str) -> str:
    """Runs a command with these variables alone, and returns what it prints. Fails with what it says of its errors."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**OFFLINE, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-6000:] + output.decode()[-2000:]
    return output.decode()
