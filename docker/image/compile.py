"""Compiling starts the service once, and leaves the bytecode of exactly those modules that the start imported.

A root that is read-only cannot keep bytecode, so without it every start would compile a thousand modules. Bytecode of
the rest would only be weight. The files are of the kind that Python takes without a look at their source's time
(PEP 552), so they stay valid in every copy of the image. Run as root, in the image, by the image's Python.
"""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

START_SECONDS = 300
KEY = "only-for-this-start"
MESSAGES = [{"role": "user", "content": "안녕하세요"}]
READ = ("/", "/info", "/metrics", "/openapi.json", "/docs", "/v1/deployments", "/v1/repository/models", "/ui/models")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        serve_once(work)
        sources = imported(work / "bytecode")
    with ProcessPoolExecutor() as pool:
        list(pool.map(compiled, sources, chunksize=32))
    print(f"bytecode of {len(sources)} modules")


def serve_once(work: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        "DOSIRAK_HOST": "127.0.0.1",
        "DOSIRAK_PORT": str(port),
        "DOSIRAK_DATA_DIR": str(work / "data"),
        "DOSIRAK_ADMIN_KEY": KEY,
        "DOSIRAK_IDLE_REPORTS": "false",
        "DOSIRAK_LOG_FORMAT": "json",
        "HOME": str(work / "home"),
        "TMPDIR": str(work),
    }
    (work / "home").mkdir()
    server = subprocess.Popen(["dosirak", "serve", "demo"], env=environment, cwd=work)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
        use(f"http://127.0.0.1:{port}")
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    if status:
        sys.exit(f"the service ended with status {status}")


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).read()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("the service did not become ready; its log is above")


def use(url: str) -> None:
    """Asks for what the first clients ask for, so that their modules count as imported by the start."""
    for path in READ:
        ask(url, path)
    session = json.loads(ask(url, "/v1/sessions", {}))
    if importlib.util.find_spec("torch") is not None:
        ask(url, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4})
        turn = {"messages": MESSAGES, "session_id": session["id"], "parameters": {"max_new_tokens": 4}}
        ask(url, "/generate_stream", turn)


def ask(url: str, path: str, body: object = None) -> bytes:
    """Returns the answer's body, also of a refusal."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=120) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        print(f"{path}: {error.code}")
        return bytes(error.read())


def imported(bytecode: Path) -> list[Path]:
    """Returns the sources whose bytecode a start wrote under the prefix `bytecode`, which mirrors their paths."""
    written = (Path("/") / each.relative_to(bytecode) for each in bytecode.rglob("*.pyc"))
    sources = {each.with_name(each.name.split(".")[0] + ".py") for each in written}
    return sorted(each for each in sources if each.is_file() and not each.is_relative_to("/tmp"))


def compiled(source: Path) -> None:
    target = importlib.util.cache_from_source(str(source))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), target, doraise=True, invalidation_mode=mode, quiet=1)


if __name__ == "__main__":
    main()
