"""A hostile child does what a foreign file might make of the process that reads it: for `test_limited`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def main(kind: str, argument: str = "") -> str:
    """Does one thing. Returns what came of it, where it comes back."""
    match kind:
        case "loops":
            while True:
                pass
        case "waits":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", argument])
            time.sleep(300)
        case "takes memory":
            return str(len(bytearray(1 << 40)))
        case "aborts":
            os.abort()
        case "kills itself":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "raises":
            raise ValueError("secret")
        case "writes":
            Path(argument).write_bytes(b"x" * 4096)
        case "asks":
            socket.create_connection(("127.0.0.1", int(argument)), timeout=1)
        case "looks":
            return " ".join(sorted(os.environ))
    return "it came through"
