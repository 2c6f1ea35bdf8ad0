"""This module is `dosirak serve`: it runs `bentoml serve` as a child, shows its start, and shows one real answer. It
serves nothing itself."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import httpx
from rich.console import Console
from rich.text import Text

from service.cli.serve import checks, process
from service.cli.serve.address import address, authorization
from service.cli.serve.first_answer import show_first_answer
from service.cli.serve.screen import Screen
from service.cli.serve.waiting import answers_in_progress, slow_kernels, wait_until_ready, why_not_ready
from service.host import has_torch, num_gpus
from service.settings import Settings, child_environment, visible_gpus
from service.storage.records import leave, open_repository

INTERRUPTED: Final = 130
"""The exit status of a program that Ctrl-C ended."""
LAST_LINES_SECONDS: Final = 2.0


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
        command = process.serve_command(listening, settings.port, settings.drain_seconds)
        child = process.start(command, child_environment(settings, for_terminal=shared), piped=shared)
        screen = Screen(self.console, child.stdout) if child.stdout else None
        url, headers = address(settings), authorization(settings)
        try:
            with process.drained_by_signals(child), httpx.Client(base_url=url, headers=headers, timeout=5) as client:
                try:
                    return self._watch(child, client, screen)
                except KeyboardInterrupt:
                    return self._interrupted(child, client)
                except checks.CannotStart:
                    child.terminate()
                    process.wait(child)
                    raise
        finally:
            if screen is not None:
                screen.finish(LAST_LINES_SECONDS)

    def _watch(self, child: subprocess.Popen[bytes], client: httpx.Client, screen: Screen | None) -> int:
        """Shows the start and the first answer, and waits for the child's end."""
        seconds = self.settings.load_timeout_seconds
        try:
            if wait_until_ready(client, self.console, lambda: child.poll() is None, seconds):
                self._show_ready(client, screen)
            elif child.poll() is None:
                self._warn(
                    f"not ready after {seconds:g} s, and it goes on trying: {why_not_ready(client) or 'see its log'}"
                )
        except httpx.HTTPError as error:
            self._warn(f"the server did not answer ({error}); its log above says why")
        status = process.exit_status(process.wait(child))
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
        with screen.quiet() if screen is not None else nullcontext():
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
            process.wait(child)
        except KeyboardInterrupt:
            process.kill(child)
        return INTERRUPTED

    def _warn(self, sentence: str | None) -> None:
        if sentence:
            self.console.print(Text.assemble(("warning", "yellow"), f": {sentence}"), soft_wrap=True)
