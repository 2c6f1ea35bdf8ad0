"""This module is `dosirak serve`: it runs `bentoml serve` as a child in a process group of its own, shows its start and
one real answer, and ends it. It serves nothing itself.

Ctrl-C at a terminal reaches the group of the command alone. So the command can say what it waits for before it ends the
child, and a second Ctrl-C can end all of the child's processes: BentoML's workers have sessions of their own, which no
signal of the terminal reaches.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import httpx
from rich.console import Console
from rich.text import Text

from service.cli.serve import checks
from service.cli.serve.checks import address, authorization
from service.cli.serve.showing import (
    Screen,
    answers_in_progress,
    show_first_answer,
    slow_kernels,
    wait_until_ready,
    why_not_ready,
)
from service.environment import child_environment
from service.host import has_torch, num_gpus
from service.settings import Settings, visible_gpus
from service.storage.records import leave, open_repository

SERVICE: Final = "service.bento:Dosirak"
ROOT: Final = Path(__file__).parents[3]
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""A closed terminal sends the latter, to the command alone."""
INTERRUPTED: Final = 130
"""The exit status of a program that Ctrl-C ended."""
LAST_LINES_SECONDS: Final = 2.0


def serve_command(address: str, port: int, grace: float) -> list[str]:
    words = ["-m", "bentoml", "serve", SERVICE, "--host", address, "--port", str(port)]
    return [sys.executable, *words, "--timeout-graceful-shutdown", str(int(grace) or 1)]


def start(command: list[str], environment: Mapping[str, str], *, piped: bool) -> subprocess.Popen[bytes]:
    """Starts the child. Where `piped`, all that it writes comes out of its `stdout`. Raises OSError."""
    return subprocess.Popen(
        command,
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if piped else None,
        stderr=subprocess.STDOUT if piped else None,
        process_group=0,
    )


@contextlib.contextmanager
def drained_by_signals(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP end the child after its running answers."""

    def drain(_number: int, _frame: FrameType | None) -> None:
        child.terminate()

    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, drain) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(child: subprocess.Popen[bytes]) -> int:
    """Returns the child's status at its end. Raises KeyboardInterrupt at once: `Popen.wait` would swallow a second
    Ctrl-C that follows within a quarter of a second."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child.wait()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and every process that it has started, at once."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(child.pid).children(recursive=True)
        child.kill()  # first: it would start its workers again
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    child.wait()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child after its running answers, or at once at a Ctrl-C."""
    try:
        child.terminate()
        wait(child)
    except KeyboardInterrupt:
        kill(child)


def exit_status(returned: int) -> int:
    """Returns the command's status for the child's: 0 where a signal to end was obeyed."""
    return 0 if returned in (0, -signal.SIGTERM, -signal.SIGINT) else abs(returned)


def serve(settings: Settings, console: Console, then: Callable[[Console], None] | None = None) -> int:
    """Runs until the child ends; returns its exit status. SIGTERM ends the child within the drain time, and so does
    Ctrl-C; a second Ctrl-C ends it at once. `then` is called once the start is shown. Raises CannotStart where the
    server could never be ready."""
    try:
        return _Serving(settings, console, then).run()
    except KeyboardInterrupt:
        return INTERRUPTED


@dataclass(frozen=True, slots=True)
class _Serving:
    settings: Settings
    console: Console
    then: Callable[[Console], None] | None

    def run(self) -> int:
        directory = self.settings.data_dir
        listening = checks.listening_address(self.settings)
        checks.check_devices(self.settings, num_gpus(visible_gpus()))
        checks.check_directory(directory)
        checks.check_database(self.settings)
        with checks.marked(directory) as warning:
            self._warn(warning)
            repository = open_repository(self.settings)
            self._warn(checks.check_space(repository, directory, self.settings.default_model))
            if self.settings.preload and has_torch():
                checks.check_model(repository, self.settings.default_model)
            leave()  # the child has its own connections to the database
            return self._run_child(listening)

    def _run_child(self, listening: str) -> int:
        settings, shared = self.settings, sys.stdout.isatty() and sys.stderr.isatty()
        command = serve_command(listening, settings.port, settings.drain_seconds)
        url, headers = address(settings), authorization(settings)
        with httpx.Client(base_url=url, headers=headers, timeout=5, trust_env=False) as client:
            child = start(command, child_environment(settings, for_terminal=shared), piped=shared)
            try:
                return self._attend(child, client)
            except BaseException:  # a console that is gone, an error of ours: no server is left behind
                _end(child)
                raise

    def _attend(self, child: subprocess.Popen[bytes], client: httpx.Client) -> int:
        screen = Screen(self.console, child.stdout) if child.stdout else None
        try:
            with drained_by_signals(child):
                try:
                    return self._watch(child, client, screen)
                except KeyboardInterrupt:
                    return self._interrupted(child, client)
        finally:
            if screen is not None:
                screen.finish(LAST_LINES_SECONDS)

    def _watch(self, child: subprocess.Popen[bytes], client: httpx.Client, screen: Screen | None) -> int:
        """Shows the start and the first answer, and waits for the child's end."""
        seconds = self.settings.load_timeout_seconds
        try:
            preloads = self.settings.preload
            if wait_until_ready(client, self.console, lambda: child.poll() is None, seconds, preloads=preloads):
                self._show_ready(client, screen)
            elif child.poll() is None:
                self._warn(
                    f"not ready after {seconds:g} s, and it goes on trying: {why_not_ready(client) or 'see its log'}"
                )
        except (httpx.HTTPError, ValueError) as error:  # no answer, or none in JSON
            self._warn(f"the server did not answer ({error}); its log above says why")
        status = exit_status(wait(child))
        if status:
            self.console.print(f"[red]the server ended with status {status}[/]; the lines above say why")
        return status

    def _show_ready(self, client: httpx.Client, screen: Screen | None) -> None:
        shown = client.get("/").raise_for_status().json()
        self._warn(slow_kernels(shown, platform.machine()))
        url = address(self.settings)
        if not has_torch():
            self.console.print(
                f"ready at {url}, without an engine: torch is not installed    UI: {url}/ui/\n", soft_wrap=True
            )
            return
        with screen.quiet() if screen is not None else contextlib.nullcontext():
            if self.settings.preload:  # else the answer would load the model
                show_first_answer(client, shown, self.console, streams=screen is not None)
            links = f"ready at {url}    UI: {url}/ui/    API: {url}/docs    Ctrl-C ends it"
            self.console.print(Text(f"{links}\n\n  {shown['example']['curl']}\n"), soft_wrap=True)
            if self.then is not None:
                self.then(self.console)

    def _interrupted(self, child: subprocess.Popen[bytes], client: httpx.Client) -> int:
        """Ends the child after its running answers, or at once at a second Ctrl-C."""
        try:
            answers = answers_in_progress(client) if child.poll() is None else 0
            child.terminate()
            if answers:
                counted = f"{answers} answer{'s' if answers > 1 else ''}"
                most = f"at most {self.settings.drain_seconds:g} s"
                self.console.print(f"\nwaiting for {counted}, {most}; Ctrl-C again ends at once", highlight=False)
            wait(child)
        except KeyboardInterrupt:
            kill(child)
        return INTERRUPTED

    def _warn(self, sentence: str | None) -> None:
        if sentence:
            self.console.print(Text.assemble(("warning", "yellow"), f": {sentence}"), soft_wrap=True)
