"""The work of `dosirak serve` around its server: every check really provoked, lines that wait, and an end at once."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pydantic import SecretStr
from rich.console import Console
from sqlalchemy import make_url

from loadtest.bench.running import free_port
from models.repository.repository import Repository
from service.cli.client import Client
from service.cli.serve import checks, serving
from service.cli.serve.checks import CannotStart
from service.cli.serve.showing import Screen, show_first_answer, slow_kernels, wait_until_ready
from service.settings import Settings
from tests import postgres
from tests.sessions import needs_postgresql
from tests.versions import publish
from tests.waiting import alive, block_until

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[int]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.bind((host, 0))
        taken.listen()
        yield taken.getsockname()[1]


@contextmanager
def answering(body: bytes) -> Iterator[int]:
    """A server that answers every request with `body`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ANSWER_SECONDS", 60.0)


def address_of(**settings: Any) -> str:
    return checks.listening_address(Settings(**settings))


def test_a_name_is_made_the_address_that_the_server_listens_on() -> None:
    with listening() as port:
        pass
    assert address_of(host="localhost", port=port) in ("127.0.0.1", "::1")
    assert address_of(host="127.0.0.1", port=port) == "127.0.0.1"


def test_a_port_that_another_program_has() -> None:
    with answering(b"hello") as port, pytest.raises(CannotStart, match=f"port {port} is taken by another program: end"):
        address_of(port=port)


def test_a_port_that_a_dosirak_has_and_a_free_one_beside_it() -> None:
    with answering(b'{"name": "Dosirak"}') as port, pytest.raises(CannotStart) as refused:
        address_of(port=port)
    assert "by a Dosirak that already serves there" in str(refused.value)
    proposed = int(str(refused.value).rpartition("DOSIRAK_PORT=")[2])
    assert address_of(port=proposed)


def test_an_address_of_another_machine_and_one_that_is_none() -> None:
    with pytest.raises(CannotStart, match="no address of this machine: set DOSIRAK_HOST"):
        address_of(host="192.0.2.1", admin_key="k")
    with pytest.raises(CannotStart, match="is no address: set DOSIRAK_HOST"):
        address_of(host="nowhere.invalid", admin_key="k")


def test_a_directory_that_is_or_lies_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(CannotStart, match="is, or lies in, a file: remove the file, or choose another"):
            checks.check_directory(path)


def test_a_database_of_a_newer_release_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    checks.check_database(settings)
    assert not (tmp_path / "sessions.db").exists(), "a check makes none"
    for revision, refusal in (("0012", nullcontext()), ("0099", pytest.raises(CannotStart, match="the newer version"))):
        with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection, connection:
            connection.execute("DROP TABLE IF EXISTS alembic_version")
            connection.execute("CREATE TABLE alembic_version AS SELECT ? AS version_num", (revision,))
        with refusal:
            checks.check_database(settings)


@needs_postgresql
def test_a_server_s_database_of_a_newer_release_ends_the_start(tmp_path: Path) -> None:
    url = postgres.server().new_database()
    settings = Settings(data_dir=tmp_path, database_url=SecretStr(url))
    checks.check_database(settings)
    postgres.server().sql("UPDATE alembic_version SET version_num = '0099'", str(make_url(url).database))
    with pytest.raises(CannotStart, match="the newer version"):
        checks.check_database(settings)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere, so the checks run as a user without rights."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("file", ["", "sessions.db"], ids=["the directory", "a file in it"])
def test_a_directory_of_another_user(file: str) -> None:
    directory = Path(tempfile.mkdtemp())
    (directory / "sessions.db").touch()
    (directory / "sessions.db").chmod(0o400 if file else 0o666)
    directory.chmod(0o777 if file else 0o555)
    try:
        with as_nobody(), pytest.raises(CannotStart, match=r"belongs to .* give it to .* DOSIRAK_DATA_DIR") as refused:
            checks.check_directory(directory)
        assert str(directory / file) in str(refused.value)
        assert os.geteuid() != 0 or f"(chown {NOBODY} {directory}, with -R" in str(refused.value)
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


def test_what_a_file_system_puts_there_is_no_ones_data() -> None:
    directory = Path(tempfile.mkdtemp())
    for name in ("lost+found", ".snapshot"):
        (directory / name).mkdir(mode=0o700)
    directory.chmod(0o777)
    try:
        with as_nobody():
            checks.check_directory(directory)
    finally:
        shutil.rmtree(directory)


def test_no_proxy_hears_of_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b'{"name": "Dosirak"}') as port, listening() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert checks.is_dosirak(Settings(port=port))
        here, elsewhere = (Client.of(f"http://{host}:{port}", {}) for host in ("127.0.0.1", "192.0.2.1"))
        assert here._http._mounts == {} != elsewhere._http._mounts


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError("a defect"), CannotStart("no model")])
def test_no_end_of_the_command_leaves_a_server_behind(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nobody reads what the command shows: rich ends it then."""
    children = list[subprocess.Popen[bytes]]()

    def start(*_: Any, **__: Any) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0))
        return children[0]

    def fail(*_: Any, **__: Any) -> bool:
        raise error

    monkeypatch.setattr(serving, "start", start)
    monkeypatch.setattr(serving, "wait_until_ready", fail)
    with pytest.raises(type(error)):
        serving.serve(Settings(data_dir=tmp_path, port=free_port(), preload=False), console())
    assert children[0].poll() == -signal.SIGTERM


def on_a_small_disk(size: str, program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a shell program with `directory` on a file system of its own; skips where that may not be mounted."""
    script = f"mount -t tmpfs -o size={size} tmpfs '{directory}' || exit 77; {program}"
    environment = {**os.environ, "DOSIRAK_DATA_DIR": str(directory), "PYTHON": sys.executable}
    environment["DOSIRAK_PORT"] = str(free_port())  # a server of this machine may have the usual one
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no file system may be mounted here")
    return done


SERVE = '"$PYTHON" -m service.cli serve'


def test_a_full_disk(tmp_path: Path) -> None:
    filled = f"cat /dev/zero > '{tmp_path}/fill' 2>/dev/null; {SERVE}"
    done = on_a_small_disk("64k", filled, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "is full: make room, or choose another directory" in done.stdout and "Traceback" not in done.stderr


def test_a_disk_too_small_for_the_demo_model_says_the_numbers(tmp_path: Path) -> None:
    done = on_a_small_disk("3m", SERVE, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "has 3.1 MB free and the demo model needs" in done.stdout and "Traceback" not in done.stderr


def test_little_space_is_a_warning(tmp_path: Path) -> None:
    publish(Repository(tmp_path), "one", "other")
    program = (
        "from pathlib import Path; from models.repository.repository import Repository; "
        "from service.cli.serve.checks import *;"
        f"print(check_space(Repository(Path('{tmp_path}')), Path('{tmp_path}') / 'disk'))"
    )
    (tmp_path / "disk").mkdir()
    done = on_a_small_disk("3m", f'"$PYTHON" -c "{program}"', tmp_path / "disk")
    assert "has only 3.1 MB free: sessions and imports are refused" in done.stdout, done.stderr


def test_a_default_model_that_is_not_there(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    with pytest.raises(CannotStart, match=r"There is no model nobody.* Import it, as in dosirak model import"):
        checks.check_model(repository, "nobody")
    for reference in ("demo", "demo:2", "demo@production"):
        checks.check_model(repository, reference)  # the server publishes it
    publish(repository, "one", "other")
    publish(repository, "one")
    repository.promote("demo", "production", "1", "first")
    for reference in ("nobody", "demo:7", "demo@staging", "no such"):
        with pytest.raises(CannotStart, match="or set DOSIRAK_DEFAULT_MODEL to one of: demo, other"):
            checks.check_model(repository, reference)
    checks.check_model(repository, "demo:1")


def test_a_second_server_of_a_data_directory_is_a_warning(tmp_path: Path) -> None:
    with checks.marked(tmp_path) as first, checks.marked(tmp_path) as second:
        assert first is None
        assert second is not None and f"process {os.getpid()}" in second and "DOSIRAK_DATA_DIR of its own" in second
    with checks.marked(tmp_path) as again:
        assert again is None


NATIVE = ["linear: int8 native", "native kernels: avx2"]
PORTABLE = ["linear: int8 native", "native kernels: portable"]


@pytest.mark.parametrize(
    ("device", "kernels", "machine", "expected"),
    [
        ("cpu", NATIVE, "x86_64", None),
        ("cpu", PORTABLE, "aarch64", None),
        ("cuda", ["linear: bf16 torch"], "x86_64", None),
        (None, [], "x86_64", None),
        ("cpu", PORTABLE, "x86_64", "has no AVX2"),
        ("cpu", ["linear: int8 onednn"], "x86_64", r"install a C\+\+ compiler"),
    ],
)
def test_slow_kernels(device: str | None, kernels: list[str], machine: str, expected: str | None) -> None:
    told = slow_kernels({"device": device, "kernels": kernels}, machine)
    assert told is None if expected is None else told is not None and expected.replace("\\", "") in told


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200, no_color=True)


def text_of(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_lines_wait_while_an_answer_is_shown() -> None:
    to = console()
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb", buffering=0) as written:
        screen = Screen(to, source)
        with screen.quiet():
            to.out("dosirak  이름은 ", end="")
            written.write(b"a line\nand another\n")
            block_until(lambda: len(screen._waiting or ()) == 2)
            to.out("김무슬이에요.")
        assert text_of(to).splitlines() == ["dosirak  이름은 김무슬이에요.", "a line", "and another"]
        written.write(b"\x1b[32m200\x1b[0m\rover it\nthe last, without an end")
        written.close()
        screen.finish(10)
    assert text_of(to).splitlines()[3:] == ["over it", "the last, without an end"]


DONE = {
    "usage": {"prompt_tokens": 24, "completion_tokens": 8},
    "timings": {"ttft_ms": 10.4, "tokens_per_second": 340.2},
}


def client(asked: list[Any], status: int = 200) -> httpx.Client:
    """A server whose answer is `이름은 김무슬`, or a refusal."""

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        if status != 200:
            return httpx.Response(status, json={"error": "No room: try again"})
        events = [{"token": {"text": "이름은"}}, {"token": {"text": " 김무슬"}, **DONE}]
        return httpx.Response(200, text="".join(f"data: {json.dumps(each)}\n\n" for each in events))

    return httpx.Client(transport=httpx.MockTransport(handle), base_url="http://x")


CHATS = {"messages": [{"role": "user", "content": "Write one sentence."}], "max_tokens": 64}


@pytest.mark.parametrize("streams", [True, False])
def test_the_first_answer_is_a_line_of_its_own(streams: bool) -> None:
    asked: list[Any] = []
    to = console()
    show_first_answer(client(asked), {"model": "demo:2", "example": {"body": CHATS}}, to, streams=streams)
    lines = text_of(to).splitlines()
    assert "dosirak  이름은 김무슬" in lines and "you      제 이름이 뭐예요?" in lines
    assert lines[-2] == "24 prompt tokens, first token after 10 ms, 8 tokens at 340 a second"
    assert [each["content"] for each in asked[0]["messages"]][-1] == "제 이름이 뭐예요?"


@pytest.mark.parametrize(
    ("example", "body", "said"),
    [
        (CHATS, {"messages": CHATS["messages"]}, "you      Write one sentence."),
        ({"inputs": "Rice is", "parameters": {}}, {"inputs": "Rice is"}, "Rice is이름은 김무슬"),
    ],
)
def test_another_model_is_asked_what_its_server_says(example: Any, body: Any, said: str) -> None:
    asked: list[Any] = []
    to = console()
    show_first_answer(client(asked), {"model": "tiny:1", "example": {"body": example}}, to, streams=True)
    assert asked[0].items() >= body.items() and said in text_of(to).splitlines()


def test_a_refusal_is_told_in_its_own_words() -> None:
    to = console()
    show_first_answer(client([], 503), {"model": "tiny:1", "example": {"body": CHATS}}, to, streams=False)
    assert "no answer: No room: try again" in text_of(to)


def test_a_model_that_cannot_be_loaded_is_told_once_and_tried_again() -> None:
    failed = {"model": "demo:2", "state": "failed", "phase": "x", "error": "weights.safetensors has changed"}
    looks = iter(range(100))

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            return httpx.Response(200 if next(looks) > 25 else 503)
        if request.url.path == "/":
            return httpx.Response(200, json={"model": "demo:2", "state": "failed"})
        return httpx.Response(200, json={"data": [failed]})

    to = console()
    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://x") as asking:
        assert wait_until_ready(asking, to, lambda: True, 60)
    assert text_of(to).count("demo:2 cannot be loaded: weights.safetensors has changed. It is tried again.") == 1


@pytest.mark.parametrize(("state", "hopeless"), [("started", True), ("preparing the model repository", False)])
def test_a_start_that_is_over_without_a_default_model(state: str, hopeless: bool) -> None:
    looks = iter(range(100))

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            return httpx.Response(200 if next(looks) > 15 else 503)
        said = "The default model is not ready (no version)"
        return httpx.Response(200, json={"data": [], "model": None, "state": state, "error": said})

    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://x") as asking:
        if hopeless:
            with pytest.raises(CannotStart, match="there is no default model: the lines above say why") as told:
                wait_until_ready(asking, console(), lambda: True, 60)
            assert "not ready (no version)" in str(told.value) and "DOSIRAK_DEFAULT_MODEL" in str(told.value)
        else:
            assert wait_until_ready(asking, console(), lambda: True, 60)
        assert wait_until_ready(asking, console(), lambda: True, 60, preloads=False), "the model may come later"


@pytest.mark.parametrize("preload", [True, False])
def test_the_first_answer_is_not_what_loads_the_model(tmp_path: Path, preload: bool) -> None:
    paths: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        example = {"body": {"inputs": "Rice is"}, "curl": "curl x"}
        return httpx.Response(200, json={"model": "big:1", "device": None, "kernels": [], "example": example})

    settings, to = Settings(data_dir=tmp_path, preload=preload), console()
    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://x") as asking:
        serving._Serving(settings, to, None)._show_ready(asking, None)
    assert paths == (["/", "/generate_stream"] if preload else ["/"]) and "ready at http://" in text_of(to)


FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def test_an_end_at_once_reaches_processes_with_sessions_of_their_own() -> None:
    child = serving.start([sys.executable, "-c", FAMILY], dict(os.environ), piped=True)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) == 1 and os.getpgid(child.pid) == child.pid != os.getpgrp()
    serving.kill(child)
    block_until(lambda: not alive(family))
    assert child.returncode == -9
    serving.kill(child)
    child.stdout.close()


@pytest.mark.parametrize(("returned", "status"), [(0, 0), (-15, 0), (-2, 0), (-9, 9), (1, 1)])
def test_exit_status(returned: int, status: int) -> None:
    assert serving.exit_status(returned) == status


def test_two_quick_interrupts_are_two() -> None:
    """`Popen.wait` keeps the second for itself, where it comes within a quarter of a second."""
    heard: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    def twice() -> None:
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            block_until(partial(lambda count: len(heard) == count, count))

    before = signal.signal(signal.SIGINT, interrupt)
    child = serving.start([sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ), piped=False)
    seen: list[str] = []
    try:
        threading.Timer(0.1, twice).start()
        try:
            serving.wait(child)
        except KeyboardInterrupt:
            seen.append("first")
            serving.wait(child)
    except KeyboardInterrupt:
        seen.append("second")
    finally:
        signal.signal(signal.SIGINT, before)
        serving.kill(child)
    assert seen == ["first", "second"]
