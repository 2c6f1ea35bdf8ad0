"""A job's process that does what its arguments say, without torch: `python -m tests.fake_job`."""

from __future__ import annotations

import os
import sys
import time

import msgspec

from service.child_process import die_with_parent
from service.jobs.worker import Teller


def main() -> None:
    die_with_parent()
    teller = Teller()
    asked = msgspec.json.decode(sys.stdin.buffer.read())["arguments"]
    print("libraries print to standard output")
    teller.progress(0.5, "half way")
    for line in asked.get("lines", ()):
        teller.write(line.encode())
    if wait := asked.get("wait"):
        time.sleep(wait)
    if "exit" in asked:
        os._exit(asked["exit"])
    teller.tell({"error": asked["error"]} if "error" in asked else {"result": {"model": "demo", "version": "1"}})


if __name__ == "__main__":
    main()
