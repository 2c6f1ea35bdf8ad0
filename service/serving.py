"""This module is `dosirak serve`: it runs `bentoml serve` as a child, shows its start, and shows one real answer. It
serves nothing itself."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import nullcontext
from typing import Final

import httpx
from rich.console import Console
from rich.text import Text

from models.repository import Repository
from service.settings import Settings, child_environment
from service.starting import checks, process
from service.starting.first_answer import show_first_answer
from service.starting.screen import Screen
from service.starting.waiting import answers_in_progress, slow_kernels, wait_until_ready, why_not_ready

INTERRUPTED: Final = 130
"""The exit status of a program that Ctrl-C ended."""
POLL_TIMEOUT: Final = 5.0
LAST_LINES_SECONDS: Final = 2.0


def serve(settings: Settings, console: Console) -> int:
    """Runs until the child ends; returns its exit status. SIGTERM ends the child within the drain time, and so does
    Ctrl-C; a second Ctrl-C ends it at once. Raises CannotStart where the server could never be ready."""
    try:
        return _serve(settings, console)
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve(settings: Settings, console: Console) -> int:
    listening = checks.listening_address(settings, address(settings))
    checks.check_directory(settings.data_dir)
    with checks.marked(settings.data_dir) as warning:
        _warn(console, warning)
        repository = Repository(settings.data_dir)
        _warn(console, checks.check_space(repository, settings.data_dir))
        publish_first_models(repository, settings, console)
        if settings.preload:
            checks.check_model(repository, settings.default_model)
        return _run(settings, console, listening)


def publish_first_models(repository: Repository, settings: Settings, console: Console) -> None:
    """Publishes the demo model where it is wanted. Raises CannotStart with the reason where that fails."""
    command = checks.first_models_command(repository, settings.data_dir)
    if command is None:
        return
    with console.status("publishing the demo model"):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise checks.CannotStart(done.stderr.strip().rpartition("\n")[2] or "the demo model could not be published")


def _run(settings: Settings, console: Console, listening: str) -> int:
    shared = sys.stdout.isatty() and sys.stderr.isatty()
    command = process.serve_command(listening, settings.port, settings.drain_seconds)
    child = process.start(command, child_environment(settings, for_terminal=shared), piped=shared)
    screen = Screen(console, child.stdout) if child.stdout else None
    try:
        with process.drained_by_signals(child), _client(settings) as client:
            try:
                return _watch(child, client, settings, console, screen)
            except KeyboardInterrupt:
                return _interrupted(child, client, settings, console)
    finally:
        if screen is not None:
            screen.finish(LAST_LINES_SECONDS)


def _watch(
    child: subprocess.Popen[bytes], client: httpx.Client, settings: Settings, console: Console, screen: Screen | None
) -> int:
    """Shows the start and the first answer, and waits for the child's end."""
    try:
        if wait_until_ready(client, console, lambda: child.poll() is None, settings.load_timeout_seconds):
            _show_ready(client, settings, console, screen)
        elif child.poll() is None:
            reason = why_not_ready(client) or "its log above says why"
            console.print(
                f"[yellow]not ready after {settings.load_timeout_seconds:g} s[/]: {reason}. The server goes on trying."
            )
    except httpx.HTTPError as error:
        console.print(f"[red]the server did not answer[/]: {error}; its log above says why")
    status = process.exit_status(process.wait(child))
    if status:
        console.print(f"[red]the server ended with status {status}[/]; the lines above say why")
    return status


def _show_ready(client: httpx.Client, settings: Settings, console: Console, screen: Screen | None) -> None:
    shown = client.get("/").raise_for_status().json()
    _warn(console, slow_kernels(shown, platform.machine()))
    with screen.quiet() if screen is not None else nullcontext():
        show_first_answer(client, shown, console, streams=screen is not None)
        _show_next_steps(address(settings), shown["example"]["curl"], console)


def _show_next_steps(url: str, command: str, console: Console) -> None:
    links = f"ready at {url}    API: {url}/docs    metrics: {url}/metrics    Ctrl-C ends it"
    console.print(Text(f"{links}\n\n  {command}\n"), soft_wrap=True)


def _interrupted(child: subprocess.Popen[bytes], client: httpx.Client, settings: Settings, console: Console) -> int:
    """Ends the child after its running answers, or at once at a second Ctrl-C."""
    try:
        answers = answers_in_progress(client) if child.poll() is None else 0
        child.terminate()
        if answers:
            counted = f"{answers} answer{'s' if answers > 1 else ''}"
            most = f"at most {settings.drain_seconds:g} s"
            console.print(f"\nwaiting for {counted}, {most}; Ctrl-C again ends at once", highlight=False)
        process.wait(child)
    except KeyboardInterrupt:
        process.kill(child)
    return INTERRUPTED


def _client(settings: Settings) -> httpx.Client:
    return httpx.Client(base_url=address(settings), headers=authorization(settings), timeout=POLL_TIMEOUT)


def _warn(console: Console, sentence: str | None) -> None:
    if sentence:
        console.print(Text.assemble(("warning", "yellow"), f": {sentence}"), soft_wrap=True)


def address(settings: Settings) -> str:
    """Returns where a server with these settings is reached from its own machine."""
    host = settings.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{settings.port}"


def authorization(settings: Settings) -> dict[str, str]:
    key = settings.admin_key
    return {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
