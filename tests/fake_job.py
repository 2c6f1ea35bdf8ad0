"""A job's process that does what its arguments say, without torch: `python -m tests.fake_job`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from service.evaluation.jobs.worker import ProgressWriter
from service.host import die_with_parent


def main() -> None:
    die_with_parent()
    writer = ProgressWriter()
    asked = msgspec.json.decode(sys.stdin.buffer.read())["arguments"]
    print("libraries print to standard output")
    writer.progress(0.5, "half way")
    for line in asked.get("lines", ()):
        writer.write(line.encode())
    if wait := asked.get("wait"):
        time.sleep(wait)
    while (path := asked.get("until")) and not Path(path).exists():
        time.sleep(0.01)
    if "exit" in asked:
        os._exit(asked["exit"])
    writer.send({"error": asked["error"]} if "error" in asked else {"result": {"model": "demo", "version": "1"}})


if __name__ == "__main__":
    main()
