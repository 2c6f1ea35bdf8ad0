"""This module asks the server under load for its facts, and does a scenario's actions to it and undoes them.

It knows the public API's routes and nothing about figures. Requests here are tried again: they are no part of the load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from gevent import sleep

from loadtest.runner.replies import Reply
from loadtest.runner.users import Run
from loadtest.runner.wire import Connection
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.scenario import Action, BeginRollout, EndRollout, Promote

TRIES: Final = 5
BETWEEN_SECONDS: Final = 0.5
REASON: Final = "a load test's scenario"
FACTS: Final = ("version", "model", "digest", "precision", "architecture")


def facts(connection: Connection, url: str) -> dict[str, Any] | None:
    """Returns what `/info` says of server and model; None where it is no Dosirak. Raises where no server is ready."""
    ready = _tried(connection, "GET", "/readyz")
    if ready.error:
        raise NotMeasured(
            f"no server answers at {url} ({ready.error}): start one with make serve, or name it by --host"
        )
    if ready.status != 200:
        raise NotMeasured(f"the server at {url} is not ready: /readyz answers {ready.status}; wait until it is 200")
    info = _tried(connection, "GET", "/info")
    if info.status in (401, 403):
        raise NotMeasured(f"the server at {url} wants a key: give it by --key or DOSIRAK_ADMIN_KEY")
    if info.status != 200:
        return None
    said = _json(info)
    engine = said.get("engine") or {}
    return {name: said.get(name) for name in FACTS} | {name: engine.get(name) for name in ("device", "kernels")}


@dataclass(slots=True)
class Actions:
    """Does a scenario's actions when they are due. `undo` puts every alias back to where it was before.

    Raises NotMeasured where the server refuses one, and before the load where it could not be undone or would do
    nothing.
    """

    run: Run
    connection: Connection
    done: list[tuple[float, str]] = field(default_factory=list)
    _before: dict[tuple[str, str], str] = field(default_factory=dict)

    def prepare(self) -> None:
        for action in self.run.scenario.actions:
            place = (action.model, action.alias)
            if place not in self._before:
                self._before[place] = self._version(place)
                if self._rollout(place):
                    raise NotMeasured(
                        f"{'@'.join(place)} has a rollout already: end it before this scenario begins one"
                    )
        self._refuse_what_does_nothing()

    def _refuse_what_does_nothing(self) -> None:
        first: dict[tuple[str, str], Action] = {}
        for action in self._in_order():
            first.setdefault((action.model, action.alias), action)
        for place, action in first.items():
            wanted = getattr(action, "version", getattr(action, "candidate", None))
            if wanted == self._before[place]:
                raise NotMeasured(
                    f"{'@'.join(place)} points to version {wanted} already, so the first action on it would change "
                    "nothing: name another version in the scenario, or promote one before the run"
                )

    def perform(self) -> None:
        for action in self._in_order():
            if not self.run.wait_until(action.at_seconds):
                return
            method, path, body = _request(action)
            reply = _tried(self.connection, method, path, body)
            if reply.status != 200:
                self.run.over.set()
                raise NotMeasured(f"the server refused {method} {path}: {_said(reply)}")
            self.done.append((round(self.run.now(), 3), _words(action)))

    def undo(self) -> None:
        """Ends rollouts that still run and points every alias back."""
        for place, version in self._before.items():
            path = _path(*place)
            if self._rollout(place):
                self._must("DELETE", f"{path}/rollout")
            if self._version(place) != version:
                self._must("PUT", path, {"version": version, "reason": f"after {REASON}", "override": True})

    def _in_order(self) -> list[Any]:
        return sorted(self.run.scenario.actions, key=lambda action: action.at_seconds)

    def _version(self, place: tuple[str, str]) -> str:
        return str(_json(self._must("GET", _path(*place)))["version"])

    def _rollout(self, place: tuple[str, str]) -> bool:
        reply = _tried(self.connection, "GET", f"{_path(*place)}/rollout")
        return reply.status == 200 and bool(_json(reply).get("rollout"))

    def _must(self, method: str, path: str, body: object = None) -> Reply:
        reply = _tried(self.connection, method, path, body)
        if reply.status != 200:
            raise NotMeasured(f"the scenario's actions need {method} {path}, but: {_said(reply)}")
        return reply


def _request(action: Action) -> tuple[str, str, dict[str, Any] | None]:
    path = _path(action.model, action.alias)
    if isinstance(action, Promote):
        return "PUT", path, {"version": action.version, "reason": REASON, "override": True}
    if isinstance(action, BeginRollout):
        return "PUT", f"{path}/rollout", {"candidate": action.candidate, "weight": action.weight, "override": True}
    if isinstance(action, EndRollout) and action.kind == "promote_rollout":
        return "POST", f"{path}/rollout/promote", {"reason": REASON, "override": True}
    return "DELETE", f"{path}/rollout", None


def _words(action: Any) -> str:
    place = f"{action.model}@{action.alias}"
    if isinstance(action, Promote):
        return f"{place} promoted to version {action.version}"
    if isinstance(action, BeginRollout):
        return f"{place}: rollout of version {action.candidate} at {action.weight:g} %"
    return f"{place}: rollout promoted" if action.kind == "promote_rollout" else f"{place}: rollout aborted"


def _path(model: str, alias: str) -> str:
    return f"/v1/repository/models/{model}/aliases/{alias}"


def _tried(connection: Connection, method: str, path: str, body: object = None) -> Reply:
    """A reply that says no on purpose (below 500) is the last."""
    for left in reversed(range(TRIES)):
        reply = connection.request(method, path, body)
        if not left or (not reply.error and reply.status < 500):
            return reply
        sleep(BETWEEN_SECONDS)
    raise AssertionError("unreachable")


def _json(reply: Reply) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _said(reply: Reply) -> str:
    return reply.error or f"{reply.status} {_json(reply).get('error') or reply.body[:200].decode(errors='replace')}"
