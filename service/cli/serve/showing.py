"""This module shows a start at a terminal: what the server is busy with and why it is not ready, its lines above a
moving status, and one real answer. The module knows HTTP and a console; a server that does not listen yet, or no more,
is no error."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import IO, Any, Final

import httpx
from rich.console import Console
from rich.text import Text

from service.cli.serve.checks import CannotStart
from service.engine.runner.native.build import COMMAND

POLL_SECONDS: Final = 0.1
POLLS_PER_LOOK: Final = 10  # at what the start is busy with
STARTED: Final = "started"
"""What the server says when its start is over."""
NATIVE: Final = "native kernels: "
"""What the engine says before the instruction set of its kernels."""
X86: Final = ("x86_64", "amd64")
DEMO: Final = "demo:"
DEMO_CHAT: Final = (
    {"role": "user", "content": "제 이름은 김무슬이에요."},
    {"role": "assistant", "content": "네, 기억할게요."},
    {"role": "user", "content": "제 이름이 뭐예요?"},
)
SPEAKERS: Final = {"user": "you      ", "assistant": "dosirak  "}
TOKENS: Final = 64
SECONDS: Final = 300.0
"""The longest wait for a token, on a slow machine."""


def wait_until_ready(
    client: httpx.Client, console: Console, alive: Callable[[], bool], seconds: float, *, preloads: bool = True
) -> bool:
    """Shows the work of the start until the default model is ready. Returns False when the server ended, or after
    `seconds`. A model that cannot be loaded is told once for each reason: the server goes on trying. Raises CannotStart
    where the start is over and there is no default model; a server that does not preload can get the model later."""
    deadline = time.monotonic() + seconds
    shown_reasons: set[str] = set()
    polls = count()
    with console.status("starting") as status:
        while alive() and time.monotonic() < deadline:
            try:
                if client.get("/readyz").status_code == 200:
                    return True
                if next(polls) % POLLS_PER_LOOK == 0:
                    deployed = _deployments(client)
                    status.update(_phase(deployed))
                    _tell_failures(deployed, shown_reasons, console)
                    if preloads:
                        _require_model(client)
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(POLL_SECONDS)
    return False


def _deployments(client: httpx.Client) -> list[dict[str, Any]]:
    response = client.get("/v1/deployments")
    return list(response.json()["data"]) if response.is_success else []


def _phase(deployed: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['model']}: {each['phase']}" for each in deployed) or "preparing the model repository"


def _tell_failures(deployed: list[dict[str, Any]], shown_reasons: set[str], console: Console) -> None:
    for each in deployed:
        if each["state"] == "failed" and each["error"] and each["error"] not in shown_reasons:
            shown_reasons.add(each["error"])
            named = (f"{each['model']} cannot be loaded", "yellow")
            console.print(Text.assemble(named, f": {each['error']}. It is tried again."), soft_wrap=True)


def _require_model(client: httpx.Client) -> None:
    shown = client.get("/").raise_for_status().json()
    if shown["model"] is None and shown["state"] == STARTED:
        said = why_not_ready(client)
        raise CannotStart(
            f"there is no default model: the lines above say why{said and f', and the server: {said}'}. Mend that, or "
            "name a model of the repository in DOSIRAK_DEFAULT_MODEL, and start again"
        )


def why_not_ready(client: httpx.Client) -> str:
    """Returns the server's own sentence; empty where it does not answer."""
    try:
        body = client.get("/health").json()
    except (httpx.HTTPError, ValueError):
        return ""
    return str(body.get("error", "")) if isinstance(body, dict) else ""


def slow_kernels(shown: Mapping[str, Any], machine: str) -> str | None:
    """Returns a sentence where the default model runs without the kernels made for this processor (`machine` as
    `platform.machine()`), and what to do; None where all is as fast as it can be. `shown` is the answer of `GET /`."""
    if shown["device"] != "cpu":
        return None
    native = [each for each in shown["kernels"] if each.startswith(NATIVE)]
    if not native:
        return (
            "there are no native kernels, so torch operations serve, several times slower: install a C++ compiler "
            f"(g++) where there is none, run `{COMMAND}`, and start again"
        )
    if native[0] == f"{NATIVE}portable" and machine.lower() in X86:
        return (
            "only the portable kernels run here, several times slower: this processor has no AVX2, or the kernels for "
            f"it were not built (`{COMMAND}` builds them)"
        )
    return None


def answers_in_progress(client: httpx.Client) -> int:
    """Returns how many answers the server is making; 0 where it does not say."""
    try:
        return sum(each["in_flight"] for each in _deployments(client))
    except httpx.HTTPError:
        return 0


class Screen:
    """Shows lines of `source` as they come, in a thread of its own, until its end."""

    def __init__(self, console: Console, source: IO[bytes]) -> None:
        self._console = console
        self._source = source
        self._lock = threading.Lock()
        self._waiting: list[bytes] | None = None
        self._thread = threading.Thread(target=self._pass_on, name="screen", daemon=True)
        self._thread.start()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps lines back while inside; they come out together at the end, in their order."""
        with self._lock:
            self._waiting = []
        try:
            yield
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting or [], None
                for line in waiting:
                    self._show(line)

    def finish(self, seconds: float) -> None:
        """Waits for the end of the source, so that the last lines are seen; at most `seconds`, since a process that
        outlives the server may keep it open."""
        self._thread.join(seconds)

    def _pass_on(self) -> None:
        for line in self._source:
            with self._lock:
                if self._waiting is None:
                    self._show(line)
                else:
                    self._waiting.append(line)

    def _show(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        self._console.print(Text.from_ansi(text.rsplit("\r", 1)[-1]), soft_wrap=True, highlight=False)


def show_first_answer(client: httpx.Client, shown: Mapping[str, Any], console: Console, *, streams: bool) -> None:
    """Shows one answer of the model that `shown`, the answer of `GET /`, names: token by token where `streams`, else in
    whole lines when it is complete, so that another writer's lines stand around it. Raises httpx.HTTPError."""
    body = _body(shown)
    opening = _opening(body)
    if streams:
        console.print(opening, end="", soft_wrap=True)
    answer, last = "", dict[str, Any]()
    for last in _events(client, body):
        text = last.get("token", {}).get("text", "")
        answer += text
        if streams:
            console.out(text, end="", highlight=False)
    if streams:
        console.print()
    else:
        console.print(opening + answer, soft_wrap=True)
    console.print(f"[dim]{_measured(last)}[/]\n", highlight=False)


def _body(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request for `/generate_stream`: the demo's chat, else what the server shows as an example."""
    example = shown["example"]["body"]
    source = {"inputs": example["inputs"]} if "inputs" in example else {"messages": example["messages"]}
    if (shown["model"] or "").startswith(DEMO) and "messages" in source:
        source = {"messages": DEMO_CHAT}
    return {**source, "parameters": {"max_new_tokens": TOKENS}}


def _opening(body: Mapping[str, Any]) -> Text:
    """Returns what stands before the answer: the chat so far, or the text that the model continues."""
    if "inputs" in body:
        return Text.assemble("\n", body["inputs"])
    said = Text("\n")
    for message in body["messages"]:
        said.append(SPEAKERS[message["role"]], "bold").append(f"{message['content']}\n")
    return said.append(SPEAKERS["assistant"], "bold")


def _events(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the stream's events; of a refusal, its body."""
    with client.stream("POST", "/generate_stream", json=body, timeout=SECONDS) as response:
        if response.is_error:
            yield json.loads(response.read())
            return
        for line in response.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


def _measured(event: Mapping[str, Any]) -> str:
    timings, usage = event.get("timings"), event.get("usage")
    if timings is None or usage is None:
        return f"no answer: {event.get('error', 'the stream ended early')}"
    first, rate = timings["ttft_ms"], timings["tokens_per_second"]
    begun = f"first token after {first:.0f} ms, " if first is not None else ""
    speed = f" at {rate:.0f} a second" if rate is not None else ""
    return f"{usage['prompt_tokens']} prompt tokens, {begun}{usage['completion_tokens']} tokens{speed}"
