"""Waiting for a server: what its start is busy with, what keeps it from being ready, and what its end waits for. This
module knows HTTP alone; a server that does not listen yet, or no more, is no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import httpx
from rich.console import Console

from service.cli.serve.checks import CannotStart

POLL_SECONDS: Final = 0.1
POLLS_PER_LOOK: Final = 10  # at what the start is busy with
STARTED: Final = "started"
"""What the server says when its start is over."""
NATIVE: Final = "native kernels: "
"""What the engine says before the instruction set of its kernels."""
BUILD: Final = "python -m service.engine.runner.native.build"
X86: Final = ("x86_64", "amd64")


def wait_until_ready(client: httpx.Client, console: Console, alive: Callable[[], bool], seconds: float) -> bool:
    """Shows the work of the start until the default model is ready. Returns False when the server ended, or after
    `seconds`. A model that cannot be loaded is told once for each reason: the server goes on trying. Raises CannotStart
    where the start is over and there is no default model."""
    deadline = time.monotonic() + seconds
    told: set[str] = set()
    polls = count()
    with console.status("starting") as status:
        while alive() and time.monotonic() < deadline:
            try:
                if client.get("/readyz").status_code == 200:
                    return True
                if next(polls) % POLLS_PER_LOOK == 0:
                    deployed = _deployments(client)
                    status.update(_phase(deployed))
                    _tell_failures(deployed, told, console)
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


def _tell_failures(deployed: list[dict[str, Any]], told: set[str], console: Console) -> None:
    for each in deployed:
        if each["state"] == "failed" and each["error"] and each["error"] not in told:
            told.add(each["error"])
            console.print(f"[yellow]{each['model']} cannot be loaded[/]: {each['error']}. It is tried again.")


def _require_model(client: httpx.Client) -> None:
    shown = client.get("/").raise_for_status().json()
    if shown["model"] is None and shown["state"] == STARTED:
        raise CannotStart("there is no default model: the lines above say why; mend that and start again")


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
            f"(g++) where there is none, run `{BUILD}`, and start again"
        )
    if native[0] == f"{NATIVE}portable" and machine.lower() in X86:
        return (
            "only the portable kernels run here, several times slower: this processor has no AVX2, or the kernels for "
            f"it were not built (`{BUILD}` builds them)"
        )
    return None


def answers_in_progress(client: httpx.Client) -> int:
    """Returns how many answers the server is making; 0 where it does not say."""
    try:
        return sum(each["in_flight"] for each in _deployments(client))
    except httpx.HTTPError:
        return 0
