"""A prober asks `/livez` as an orchestrator does, each time over a new connection, in a process of its own: what makes
the load is too busy to be on time.

    python -m loadtest.probing http://127.0.0.1:3000 60     prints the seconds of each answer as JSON
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
from typing import Final
from urllib.parse import urlsplit

EVERY_SECONDS: Final = 0.1
PATIENCE: Final = 60.0


def answer_seconds(host: str) -> float:
    """Returns how long one answer took; PATIENCE where none came."""
    connection, began = http.client.HTTPConnection(host, timeout=PATIENCE), time.monotonic()
    try:
        connection.request("GET", "/livez")
        connection.getresponse().read()
    except OSError:
        return PATIENCE
    finally:
        connection.close()
    return time.monotonic() - began


async def begun(url: str, seconds: float) -> asyncio.subprocess.Process:
    """Returns a prober that asks for so long; `answered` waits for it."""
    command = (sys.executable, "-m", "loadtest.probing", url, str(seconds))
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def answered(prober: asyncio.subprocess.Process) -> list[float]:
    """Returns the seconds of each answer."""
    told, _ = await prober.communicate()
    seconds: list[float] = json.loads(told)
    return seconds


def main() -> None:
    host, found = urlsplit(sys.argv[1]).netloc, list[float]()
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        found.append(answer_seconds(host))
        time.sleep(EVERY_SECONDS)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
