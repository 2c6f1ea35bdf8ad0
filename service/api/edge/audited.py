"""This layer has the audit told of each request that changes what others rely on: keys, versions, aliases, deployments,
and what clients have stored and delete. One table names the operations.

What gives access, a new key or a change of one, is told before it is made, as `begun`, and is not made where that
cannot be written. Everything is told when it has ended, before its client has the answer. A refusal is counted: a
client could send many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.audit_notes import Note
from service.errors import NotFound
from service.storage.audit.chain import Outcome
from service.storage.audit.writing import Audit, Refusal
from service.storage.keys import Keys, is_key_id


@dataclass(frozen=True, slots=True)
class Operation:
    """What the audit says of a route. `subject` is made of the path's parts, fields of the body, and `made`, the last
    part of the answer's Location. Of the body, `fields` are told. Where it `needs_row` the row comes first."""

    action: str
    subject: str
    fields: frozenset[str] = frozenset()
    needs_row: bool = False


GIVING: Final = ("keys.create", "keys.change", "keys.rotate")
"""A deletion takes access away, so it goes on."""


def _rows(table: str) -> Mapping[tuple[str, str], Operation]:
    """Returns the operations by method and template of a table: method, template, action, subject, fields of bodies."""
    found = dict[tuple[str, str], Operation]()
    for line in table.strip().splitlines():
        method, path, action, subject, *fields = line.split()
        found[method, path] = Operation(action, subject, frozenset(fields), action in GIVING)
    return found


_MODEL: Final = "/v1/repository/models/{name}"
_VERSION: Final = _MODEL + "/versions/{version}"
_ALIAS: Final = _MODEL + "/aliases/{alias}"
_SESSION: Final = "/v1/sessions/{session_id}"
_CONVERSATION: Final = "/v1/conversations/{conversation_id}"
OPERATIONS: Final = _rows(f"""
    POST /v1/keys keys.create {{made}} name scopes models expires_at limits
    PATCH /v1/keys/{{id}} keys.change {{id}} name scopes models expires_at limits
    POST /v1/keys/{{id}}/rotate keys.rotate {{id}} grace_seconds
    DELETE /v1/keys/{{id}} keys.delete {{id}}
    POST {_MODEL}/versions versions.import {{name}} precision version adapter_of evaluate
    PATCH {_VERSION} versions.parsers {{name}}:{{version}} reasoning_parser tool_parser
    DELETE {_VERSION} versions.delete {{name}}:{{version}}
    POST {_VERSION}/quantize versions.quantize {{name}}:{{version}} precision group_size evaluate
    POST {_VERSION}/evaluate versions.evaluate {{name}}:{{version}} effort
    DELETE /v1/jobs/{{id}} jobs.cancel {{id}}
    PUT {_ALIAS} aliases.promote {{name}}@{{alias}} version override
    DELETE {_ALIAS} aliases.delete {{name}}@{{alias}}
    POST {_ALIAS}/rollback aliases.rollback {{name}}@{{alias}}
    PUT {_ALIAS}/rollout rollouts.put {{name}}@{{alias}} candidate weight sticky shadow guards override
    DELETE {_ALIAS}/rollout rollouts.abort {{name}}@{{alias}}
    POST {_ALIAS}/rollout/promote rollouts.promote {{name}}@{{alias}} override
    POST /v1/deployments deployments.load {{model}} replicas draft engine max_model_len
    DELETE /v1/deployments/{{reference}} deployments.unload {{reference}}
    POST /v2/repository/models/{{model}}/load deployments.load {{model}}
    POST /v2/repository/models/{{model}}/unload deployments.unload {{model}}
    DELETE {_SESSION} sessions.delete {{session_id}}
    DELETE {_SESSION}/messages/{{message_id}} messages.delete {{session_id}}/{{message_id}}
    DELETE {_CONVERSATION} sessions.delete {{conversation_id}}
    DELETE {_CONVERSATION}/items/{{item_id}} messages.delete {{conversation_id}}/{{item_id}}
    DELETE /v1/knowledge/{{knowledge_id}} knowledge.delete {{knowledge_id}}
    DELETE /v1/files/{{file_id}} files.delete {{file_id}}
    DELETE /v1/responses/{{response_id}} answers.delete {{response_id}}
    DELETE /v1/chat/completions/{{completion_id}} answers.delete {{completion_id}}
""")
"""By method and template. Ollama's routes, which load and unload by a body without text, note it themselves."""
ACCEPTED: Final = 202
THERE: Final = (409, 412)
"""Refusals of what is there. Where another was refused, a client may have put anything into the path, a key even: the
audit does not repeat it."""
CLIENT_GONE: Final = 499


class Audited:
    """ASGI middleware, inside of `Auth`, which says who the caller is."""

    def __init__(self, app: ASGIApp, audit: Audit, keys: Keys) -> None:
        self._app = app
        self._audit = audit
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = _Request(self._audit, self._keys, scope)

        async def tell_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await told.end(message["status"], message["headers"])
            await send(message)

        try:
            await self._app(scope, receive, tell_and_send)
        except Exception:
            await told.end(CLIENT_GONE)
            raise
        finally:
            told.release()


class _Request:
    """What the audit says of one request."""

    def __init__(self, audit: Audit, keys: Keys, scope: Scope) -> None:
        self._audit = audit
        self._keys = keys
        self._scope = scope
        self._has_begun = self._has_ended = False
        self._note = Note(self._begin)
        self._note.put(scope["state"])

    def release(self) -> None:
        """Lets the request go, which holds the note, which holds the request."""
        self._note.begin = _too_late

    @property
    def _operation(self) -> Operation | None:
        if self._note.action:
            return Operation(self._note.action, self._note.subject)
        return OPERATIONS.get((self._scope["method"], getattr(self._scope.get("route"), "path", "")))

    async def _begin(self) -> bool:
        """Returns whether the audit tells this route. Raises what the database raises where a row must come first."""
        operation = self._operation
        if operation is not None and operation.needs_row:
            await self._audit.require(self._audit.entry(operation.action, "begun", {}, **self._who(self._known())))
            self._has_begun = True
        return operation is not None

    async def end(self, status: int, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Tells how the request ended, once. Most requests are told nowhere."""
        operation = self._operation
        if operation is None or self._has_ended:
            return
        location = dict(headers).get(b"location", b"").decode()
        self._has_ended = True
        outcome, is_done = _outcome(status), status < 400
        subject = self._subject(operation, location) if is_done or status in THERE else ""
        who = self._who(subject)
        if outcome == "refused" and not self._has_begun:
            who.pop("request_id")
            self._audit.count(Refusal(operation.action, status, **who))
            return
        fields: dict[str, Any] = self._fields(operation) if is_done else {"status": status}
        if status == ACCEPTED and location.startswith("/v1/jobs/"):
            fields["job"] = location.rpartition("/")[2]
        await self._audit.add(self._audit.entry(operation.action, outcome, fields, **who))

    def _who(self, subject: str) -> dict[str, str]:
        state, client = self._scope["state"], self._scope.get("client")
        actor: str = state["actor"]
        key = self._keys.living(actor) if is_key_id(actor) else None
        peer, name = str(client[0]) if client else "", key.name if key else ""
        texts = {"subject": subject, "owner": actor, "name": name, "peer": peer}
        return {**texts, "request_id": state["request_id"]}

    def _known(self) -> str:
        """Returns the id of the path where a key has it."""
        id = self._scope["path_params"].get("id", "")
        try:
            return self._keys.get(id).id
        except NotFound:
            return ""

    def _subject(self, operation: Operation, location: str) -> str:
        if self._note.action:
            return self._note.subject
        body = self._note.body.model_dump() if self._note.body else {}
        parts = {**body, **self._scope["path_params"], "made": location.rpartition("/")[2]}
        return operation.subject.format_map(parts)

    def _fields(self, operation: Operation) -> dict[str, Any]:
        if self._note.body is None or not operation.fields:
            return {}
        return self._note.body.model_dump(mode="json", include=set(operation.fields), exclude_unset=True)


async def _too_late() -> bool:
    return False


def _outcome(status: int) -> Outcome:
    if status >= CLIENT_GONE:
        return "failed"
    if status >= 400:
        return "refused"
    return "begun" if status == ACCEPTED else "done"
