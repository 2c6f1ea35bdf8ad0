"""Inputs of BentoML's two methods become bodies of `POST /generate`, and go to the app as requests of its own.

The fields that clients use most stand beside the prompt; `parameters` takes all other fields. The app answers a
forwarded request like every other: the same validation, admission, limits, log line and metrics. It also notices when
the client disconnects, because it goes on reading from the client's connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import bentoml
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

BODY: Final[tuple[str, ...]] = ("inputs", "messages", "session_id", "model")
"""Fields of the body itself; the others are in its `parameters`."""


class Options(BaseModel):
    """The fields of both methods. A field that is unknown, of another type, or given twice, is refused. BentoML logs
    the refusal, so the refusal must not contain what the client sent."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    model: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    parameters: dict[str, object] | None = None

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        twice = sorted(self.model_fields_set & set(self.parameters or {}))
        if twice:
            raise ValueError(f"`{twice[0]}` is given twice: leave it out of `parameters`")
        return self


class Prompt(BaseModel):
    prompt: str


class Messages(BaseModel):
    messages: list[dict[str, object]]
    session_id: str | None = None


class GenerateInput(Options, Prompt):
    """A text to continue."""


class ChatInput(Options, Messages):
    """A chat to answer; with `session_id`, the session's new messages."""


def generate_body(fields: dict[str, object]) -> dict[str, object]:
    """Returns the fields of an input as `POST /generate` takes them; leaves out absent fields."""
    renamed = {("inputs" if name == "prompt" else name): value for name, value in fields.items() if value is not None}
    others = renamed.pop("parameters", None)
    body: dict[str, object] = {name: renamed.pop(name) for name in BODY if name in renamed}
    parameters = {**(others if isinstance(others, dict) else {}), **renamed}
    return {**body, "parameters": parameters} if parameters else body


OWN: Final = (b"content-length", b"content-type", b"content-encoding", b"transfer-encoding", b"expect")
"""Headers that describe the body: the forwarded request has another body."""
KEPT_BACK: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "date", "server", "transfer-encoding", "vary"}
)
"""Headers of the app's response about its bytes and its connection: BentoML's response has its own."""
FOR_PAGES: Final = "access-control-"
"""Headers for pages of other origins, which the layer around BentoML's routes writes."""
SHARED: Final = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")


@dataclass(slots=True)
class Reply:
    """A whole response: `headers` by their names in lower case, `body` as JSON."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)

    @property
    def body(self) -> dict[str, object]:
        """Returns the JSON; empty where the client disconnected, because the app then writes no body."""
        read: dict[str, object] = json.loads(bytes(self.content)) if self.content else {}
        return read

    async def collect(self, message: Message) -> None:
        """Takes the app's messages: this is the `send` of the ASGI call."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.content += message.get("body", b"")


async def answer(app: ASGIApp, ctx: bentoml.Context, path: str, body: Mapping[str, object]) -> dict[str, object]:
    """Returns the result of a method of BentoML's API: the app's answer, with the app's status and headers."""
    reply = await post(app, ctx.request, path, body)
    ctx.response.status_code = reply.status
    ctx.response.headers.update(forwarded(reply.headers))
    return reply.body


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the app's headers that BentoML's response gets as well."""
    return {name: value for name, value in headers.items() if name not in KEPT_BACK and not name.startswith(FOR_PAGES)}


async def post(app: ASGIApp, request: Request, path: str, body: Mapping[str, object]) -> Reply:
    """Returns what `app` answers to `body` at `path`, for the client of `request`, whose body has been read."""
    content = json.dumps(body).encode()
    waiting: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else await request.receive()

    reply = Reply()
    await app(_scope(request.scope, path, len(content)), receive, reply.collect)
    return reply


def _scope(outer: Scope, path: str, length: int) -> Scope:
    headers = [(name, value) for name, value in outer["headers"] if name not in OWN]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    shared = {key: outer[key] for key in SHARED if key in outer}
    own = {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    return {**shared, **own, "state": dict(outer.get("state", {}))}
