"""This module is `dosirak serve`: it runs `bentoml serve` as a child, shows its start, and shows one real answer. It
serves nothing itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Final

import httpx
from rich.console import Console

from service.settings import Settings, child_environment

CHAT: Final = (
    {"role": "user", "content": "제 이름은 김무슬이에요."},
    {"role": "assistant", "content": "네, 기억할게요."},
    {"role": "user", "content": "제 이름이 뭐예요?"},
)
SPEAKERS: Final = {"user": "you      ", "assistant": "dosirak  "}
POLL_SECONDS: Final = 0.1
POLLS_PER_LOOK: Final = 10  # at what the start is busy with


def serve(settings: Settings, console: Console, then: Callable[[Console], None] | None = None) -> int:
    """Runs until the child ends; returns its exit status. Ctrl-C and SIGTERM end the child within the drain time.
    `then` is called once the start is shown."""
    child = subprocess.Popen(_command(settings), env=child_environment(settings), cwd=_project_root())
    _forward_signals(child)
    url, headers = address(settings), authorization(settings)
    try:
        if _wait_until_ready(child, url, headers, settings, console):
            _show_answer(url, headers, console)
            _show_next_steps(url, settings, console)
            if then is not None:
                then(console)
    except httpx.HTTPError as error:
        console.print(f"[red]the server did not answer[/]: {error}; its log above says why")
    return _exit_status(child.wait())


def _command(settings: Settings) -> list[str]:
    grace = str(int(settings.drain_seconds) or 1)
    address = ["--host", settings.host, "--port", str(settings.port)]
    return [
        sys.executable,
        "-m",
        "bentoml",
        "serve",
        "service.bento:Dosirak",
        *address,
        "--timeout-graceful-shutdown",
        grace,
    ]


def _project_root() -> Path:
    return Path(__file__).parent.parent


def address(settings: Settings) -> str:
    """Returns where a server with these settings is reached from its own machine."""
    host = settings.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{settings.port}"


def authorization(settings: Settings) -> dict[str, str]:
    key = settings.admin_key
    return {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}


def _forward_signals(child: subprocess.Popen[bytes]) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to the child as well


def _wait_until_ready(
    child: subprocess.Popen[bytes], url: str, headers: dict[str, str], settings: Settings, console: Console
) -> bool:
    """Shows the work of the start until the default model is ready; returns False when the child ended instead."""
    deadline = time.monotonic() + settings.load_timeout_seconds
    with httpx.Client(headers=headers, timeout=5) as client, console.status("starting") as status:
        polls = count()
        while child.poll() is None and time.monotonic() < deadline:
            try:
                if client.get(f"{url}/readyz").status_code == 200:
                    return True
                if next(polls) % POLLS_PER_LOOK == 0:
                    status.update(_phase(client.get(f"{url}/v1/deployments")))
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(POLL_SECONDS)
    return False


def _phase(response: httpx.Response) -> str:
    deployments = response.json().get("data", []) if response.status_code == 200 else []
    return ", ".join(f"{each['model']}: {each['phase']}" for each in deployments) or "preparing the model repository"


def _show_answer(url: str, headers: dict[str, str], console: Console) -> None:
    body = {"messages": CHAT, "parameters": {"max_new_tokens": 64}}
    console.print()
    for message in CHAT:
        console.print(f"[bold]{SPEAKERS[message['role']]}[/]{message['content']}", highlight=False)
    console.print(f"[bold]{SPEAKERS['assistant']}[/]", end="")
    last: dict[str, object] = {}
    with httpx.stream("POST", f"{url}/generate_stream", json=body, headers=headers, timeout=60) as response:
        if response.is_error:  # a model without a chat template, say: the body says so
            last = json.loads(response.read())
        for event in _events(response) if response.is_success else ():
            if "token" in event:
                console.out(event["token"]["text"], end="", highlight=False)  # type: ignore[index]
            last = event
    console.print(f"\n[dim]{_measured(last)}[/]\n")


def _events(response: httpx.Response) -> Iterator[dict[str, object]]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


def _measured(event: dict[str, object]) -> str:
    timings, usage = event.get("timings"), event.get("usage")
    if not isinstance(timings, dict) or not isinstance(usage, dict):
        return f"no answer: {event.get('error', 'the stream ended early')}"
    return (
        f"{usage['prompt_tokens']} prompt tokens, first token after {timings['ttft_ms']:.0f} ms, "
        f"{usage['completion_tokens']} tokens at {timings['tokens_per_second']:.0f} a second"
    )


def _show_next_steps(url: str, settings: Settings, console: Console) -> None:
    key = ' -H "Authorization: Bearer $DOSIRAK_ADMIN_KEY"' if settings.admin_key else ""
    data = '{"inputs": "도시락", "parameters": {"max_new_tokens": 16}}'
    console.print(f"ready at {url}    API: {url}/docs    metrics: {url}/metrics    Ctrl-C ends it\n", soft_wrap=True)
    console.print(
        f"  curl {url}/generate{key} -H 'Content-Type: application/json' -d '{data}'\n", soft_wrap=True, markup=False
    )


def _exit_status(returned: int) -> int:
    return 0 if returned in (0, -signal.SIGTERM, -signal.SIGINT) else abs(returned)
