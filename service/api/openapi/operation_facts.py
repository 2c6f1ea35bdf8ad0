"""This module tells the OpenAPI document what FastAPI cannot know of an operation: keys, headers, examples of bodies,
and what each tag is about. It knows paths and methods, no handlers."""

from __future__ import annotations

import re
from typing import Any, Final

from service.api.http.scopes import scope_of
from service.api.openapi.body_examples import EXAMPLES

SCHEMES: Final = {
    "key": {"type": "http", "scheme": "bearer", "description": "The server's key: `Authorization: Bearer …`."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same key."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "dosirak",
        "description": "The store UI's cookie, whose name ends on letters of its own; it changes things for the UI's "
        "own pages only.",
    },
}
"""Ways to show the key. A server without a key answers its own machine without any."""
TAGS: Final = {
    "anthropic": "Anthropic's messages.",
    "batches": "OpenAI's batches: requests of a file, answered while there is idle capacity.",
    "context": "What of a chat the next call would send.",
    "feedback": "Votes on answers.",
    "files": "OpenAI's files, which batches read.",
    "generate": "TGI's routes, with our own fields around them.",
    "knowledge": "Documents that answers may rest on.",
    "kserve": "The KServe v2 protocol with Triton's extensions.",
    "ollama": "Ollama's routes.",
    "openai": "OpenAI's chat and text completions, models and embeddings.",
    "operations": "Health, metrics, deployments, profiles.",
    "repository": "Versions of models: imports, measurements, aliases, rollouts, jobs.",
    "responses": "OpenAI's responses and conversations.",
    "sessions": "Chats that the server keeps.",
    "tokenize": "Text to tokens and back.",
}
REPEATED: Final = re.compile(
    r"/|/generate(_stream)?|/v1/(chat/completions|completions|messages|responses|sessions/\{session_id\}/regenerate)"
    r"|/v2/models/.*/(generate|generate_stream|infer)|/api/(chat|generate)"
)
"""Operations that generate, which a request with an Idempotency-Key is answered by once."""
REQUEST_ID: Final = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "The client's own name of the request; the answer repeats it. A name of other characters than "
    "letters, digits and ._:- gets a new one.",
    "schema": {"type": "string"},
}
IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The request is answered once: a repetition gets the stored bytes, for 24 hours.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}
TRACEPARENT: Final = {
    "name": "traceparent",
    "in": "header",
    "description": "The caller's trace (W3C): the log line and the span of the request are in it. A text of "
    "another form is ignored.",
    "schema": {"type": "string"},
}
TRACESTATE: Final = {
    "name": "tracestate",
    "in": "header",
    "description": "What tracing systems noted of the trace (W3C); the span keeps it. Read beside `traceparent` only.",
    "schema": {"type": "string"},
}
_READ: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    (
        "GET",
        r"/v1/models(/\{id\})?",
        {
            "name": "anthropic-version",
            "in": "header",
            "description": "Any version: the answer is Anthropic's.",
            "schema": {"type": "string"},
        },
    ),
    (
        "POST",
        r"/|/generate(_stream)?|/v1/(chat/completions|context/preview|messages|responses)",
        {
            "name": "if-match",
            "in": "header",
            "description": "With a session or conversation: the ETag that it was last told with; 412 where it has "
            "changed.",
            "schema": {"type": "string"},
        },
    ),
    (
        "GET",
        r"/v1/files/\{file_id\}/content",
        {
            "name": "Range",
            "in": "header",
            "description": "`bytes=100-`, say: the part of the file that is wanted, which comes with 206.",
            "schema": {"type": "string"},
        },
    ),
    (
        "GET",
        r"/v1/files/\{file_id\}/content",
        {
            "name": "If-Range",
            "in": "header",
            "description": "The ETag of the part that the client has; where it is another, the whole file comes.",
            "schema": {"type": "string"},
        },
    ),
    (
        "POST",
        r"/v2/models/.*/infer",
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "description": "Bytes of the JSON at the body's beginning; the binary tensors follow it. Absent, the whole "
            "body is JSON.",
            "schema": {"type": "integer", "minimum": 0},
        },
    ),
)
"""Headers that handlers read themselves: methods and paths as patterns."""


def add_facts(document: dict[str, Any], keyed: bool, open_metrics: bool) -> None:
    """Adds the facts to every operation of a document. `keyed`: the server has a key; `open_metrics`: it lets everyone
    read its metrics then."""
    document["components"]["securitySchemes"] = SCHEMES
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _add(operation, method.upper(), path)
            is_open = keyed and open_metrics and path == "/metrics"
            _secure(operation, None if is_open else scope_of(method.upper(), path), keyed)


def _secure(operation: dict[str, Any], scope: str | None, keyed: bool) -> None:
    """Says how to show the key: not at all where `scope` is None, and on its own machine only where there is none."""
    if scope is None:
        operation["security"] = []
        for status in ("401", "403"):
            del operation["responses"][status]
        return
    operation["security"] = [*([] if keyed else [{}]), *({name: [scope]} for name in SCHEMES)]


def _add(operation: dict[str, Any], method: str, path: str) -> None:
    parameters = operation.setdefault("parameters", [])
    parameters += [REQUEST_ID, TRACEPARENT, TRACESTATE]
    parameters += [header for verb, paths, header in _READ if verb == method and re.fullmatch(paths, path)]
    if method == "POST" and REPEATED.fullmatch(path):
        parameters.append(IDEMPOTENCY_KEY)
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body and "$ref" in body.get("schema", {}):
        name = body["schema"]["$ref"].rsplit("/", 1)[-1]
        if name in EXAMPLES:
            body["example"] = EXAMPLES[name]
