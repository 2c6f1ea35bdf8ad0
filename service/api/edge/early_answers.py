"""Early answers are given at the door, without a task, the layers around the routes and a wire model: to probes, which
must not wait for a busy event loop, and to those who would be refused behind the door, at a tenth of the cost. Requests
are looked at closer only for a moment after a refusal.

Whoever could enter goes on: with a deadline, a session, an Idempotency-Key, a version that has to load or a rollout,
with another fault than that the server is full. An owner is refused for its own part of the queue, as behind the door.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from service.api.edge.framing import answer_of
from service.api.edge.layer import headers_of_answer, request_id_of
from service.api.http.errors import dialect_of, status_of
from service.api.http.scopes import GENERATE, Caller
from service.errors import DosirakError
from service.observability.logs import Seldom
from service.storage.keys import KeyLimits

if TYPE_CHECKING:
    from service.generation.answers import Answers

ALIVE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
    b"content-length: 1\r\n\r\n\n"
)
"""BentoML's own answer to a probe."""
OLLAMA: Final = frozenset({"/api/chat", "/api/generate"})
PATHS: Final = OLLAMA | {
    "/",
    "/generate",
    "/generate_stream",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
}
TELLING: Final = frozenset({b"idempotency-key", b"origin", b"expect", b"content-encoding"})
"""Headers that ask for more than an answer."""
EMPTY: Final = (b"", b"null", b'""', b"[]")


class _Parameters(msgspec.Struct):
    adapter_id: Any = None


class _Body(msgspec.Struct):
    """What decides whether a request could enter, of a body in any dialect."""

    model: str | None = None
    parameters: _Parameters | None = None
    deadline_ms: Any = None
    session_id: Any = None
    conversation: Any = None
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()

    @property
    def is_usual(self) -> bool:
        of_adapter = self.parameters is not None and self.parameters.adapter_id is not None
        return not of_adapter and self.deadline_ms is self.session_id is self.conversation is None

    @property
    def asks(self) -> bool:
        return bytes(self.prompt) not in EMPTY or bytes(self.messages) not in EMPTY


_decode = msgspec.json.Decoder(_Body).decode


class EarlyAnswers:
    """`caller` identifies who sends a request, or raises a DosirakError. `is_ready` is asked for `/readyz`. `instance`
    is the server's id."""

    most_bytes = 64 << 10
    """A larger body is not waited for here."""

    def __init__(
        self, caller: Callable[[Scope], Caller], answers: Answers, is_ready: Callable[[], bool], instance: str
    ) -> None:
        self._caller = caller
        self._is_ready = is_ready
        self._answers = answers
        self._instance = instance
        self._log = Seldom("refused_at_the_door")

    def at_once(self, scope: Scope) -> bytes | None:
        """Returns the whole answer to a probe of a server that is alive, or ready."""
        if scope["method"] != "GET":
            return None
        return ALIVE if scope["path"] == "/livez" or (scope["path"] == "/readyz" and self._looks_ready()) else None

    def _looks_ready(self) -> bool:
        try:
            return self._is_ready()
        except Exception:  # told behind the door, as a disk that is away
            return False

    def may_refuse(self, scope: Scope) -> bool:
        """Returns whether it is worth to wait for the body of this request and to ask for `refusal`."""
        if not self._answers.admission.is_crowded or scope["method"] != "POST" or scope["path"] not in PATHS:
            return False
        return TELLING.isdisjoint([name for name, _ in scope["headers"]])

    def refusal(self, scope: Scope, body: bytes) -> bytes | None:
        """Returns the whole refusal, counted; None for a request that goes on."""
        try:
            error = self._refusal(scope, body)
        except Exception:  # what is wrong is told behind the door
            return None
        if error is None:
            return None
        dialect, path = dialect_of(scope), scope["path"]
        metrics = self._answers.metrics
        metrics.http_request(path, "POST", status_of(error, dialect))
        metrics.error(error.code)
        self._log.warn(error.code, route=path)
        request_id = request_id_of(scope)
        return answer_of(error, request_id, dialect, headers_of_answer(scope, request_id, self._instance))

    def _refusal(self, scope: Scope, body: bytes) -> DosirakError | None:
        caller, asked = self._caller(scope), _decode(body)
        if GENERATE not in caller.scopes or not asked.is_usual or (scope["path"] in OLLAMA and not asked.asks):
            return None
        answers = self._answers
        deployment = answers.deployments.certain(answers.deployments.allowed(caller.models, asked.model))
        if deployment is None:
            return None
        if isinstance(caller.limits, KeyLimits):
            spent = answers.quotas.refusal(caller.owner, caller.limits)
            if spent is not None:
                return spent
        return answers.admission.refusal(deployment.manifest.base_digest, caller.owner, deployment.engine.stats, body)
