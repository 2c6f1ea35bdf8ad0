"""A container of Linux namespaces: an image's root, read-only, with a volume at /data and a tmpfs at /tmp.

It needs root and util-linux, and no runtime. It knows what the image's configuration says and nothing of the service.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODES = ("null", "zero", "full", "random", "urandom")
MOUNTS = """
set -e
cd "$1"
mount --bind . . && cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs dev
for node in $4; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/shm && mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755,uid=$2,gid=$2 tmpfs data
mount -o remount,bind,ro .
user=$3
shift 4
exec chroot --userspec="$user" --groups= . /usr/bin/env -i "$@"
"""


@dataclass(frozen=True)
class Image:
    """A mounted image: its root, and of its configuration what a runtime reads."""

    root: Path
    user: str
    environment: tuple[str, ...]
    command: tuple[str, ...]

    @classmethod
    def of(cls, root: Path, inspected: dict[str, Any]) -> Image:
        """Reads what `buildah inspect --type image` says."""
        config = inspected["OCIv1"]["config"]
        command = (*config.get("Entrypoint", ()), *config.get("Cmd", ()))
        return cls(root, config.get("User", ""), tuple(config.get("Env", ())), command)

    def files(self) -> Iterator[Path]:
        return (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())


class Container:
    """One run of an image. It has the host's network, and process ids of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, key: str, log: Path) -> None:
        self.port = port
        self.key = key
        self._process = process
        self._log = log
        self._terminated_at = self._started_at = time.monotonic()

    @classmethod
    @contextmanager
    def started(cls, image: Image, data_owner: int) -> Iterator[Container]:
        """Runs the image's own command; kills what is left at the end."""
        for name in ("proc", "sys", "dev", "tmp", "data"):
            (image.root / name).mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key = secrets.token_hex(8)
        given = (f"DOSIRAK_PORT={port}", f"DOSIRAK_ADMIN_KEY={key}", "DOSIRAK_HOST=127.0.0.1")
        words = (str(image.root), str(data_owner), image.user, " ".join(NODES), *image.environment, *given)
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            with log.open("wb") as output:
                command = [*unshare, "sh", "-c", MOUNTS, "sh", *words, *image.command]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            try:
                yield cls(process, port, key, log)
            finally:
                process.kill()
                process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, is_there: Callable[[], bool], seconds: float) -> float | None:
        """Returns after how many seconds from the start `is_there` was true; None if the process ended or time did."""
        while self._process.poll() is None and time.monotonic() - self._started_at < seconds:
            if is_there():
                return time.monotonic() - self._started_at
            time.sleep(0.05)
        return None

    def processes(self) -> list[int]:
        """Returns the host's ids of all processes in the container, the first one first."""
        found = _children(self._process.pid)
        for pid in found:
            found += _children(pid)
        return found

    def users(self) -> set[int]:
        lines = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in self.processes()]
        return {int(uid) for each in lines for line in each if line.startswith("Uid:") for uid in line.split()[1:]}

    def refuses_writes(self) -> bool:
        """Whether even the administrator cannot write to the container's root."""
        try:
            Path(f"/proc/{self.processes()[0]}/root/opt/dosirak/written").touch()
        except OSError:
            return True
        return False

    def terminate(self) -> None:
        """Sends SIGTERM to the first process, as `docker stop` and the kubelet do."""
        self._terminated_at = time.monotonic()
        os.kill(self.processes()[0], signal.SIGTERM)

    def end(self, seconds: float) -> tuple[int | None, float]:
        """Waits; returns the exit status, None where it did not end, and the seconds since SIGTERM or the start."""
        try:
            status: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        return status, time.monotonic() - self._terminated_at


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in task.read_text().split()]
    return found
