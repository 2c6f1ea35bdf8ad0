"""This module tells the OpenAPI document what FastAPI cannot know of an operation: keys, headers, examples of bodies,
and what each tag is about. It knows paths and methods, no handlers."""

from __future__ import annotations

import re
from typing import Any, Final

from service.api.http.scopes import scopes_of

_ASKED: Final = [{"role": "user", "content": "안녕하세요"}]
EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "GenerateBody": {"messages": _ASKED, "parameters": {"max_new_tokens": 64}},
    "TokenizeBody": {"messages": _ASKED},
    "DetokenizeBody": {"tokens": [40, 41]},
    "ChatTokenizeBody": {"messages": _ASKED},
    "DeploymentBody": {"model": "demo"},
    "ProfileBody": {"steps": 8},
    "ImportBody": {"source": "Qwen/Qwen2.5-0.5B-Instruct", "precision": "int8"},
    "QuantizeBody": {"precision": "int8"},
    "EvaluateBody": {"effort": "quick"},
    "ParsersBody": {"reasoning_parser": "think-begun", "tool_parser": "hermes"},
    "AliasBody": {"version": "1", "reason": "it is the first", "override": True},
    "ReasonBody": {"reason": "answers became worse"},
    "RolloutBody": {"candidate": "2", "weight": 10, "guards": {"error_rate": 0.05}, "override": True},
    "CandidateBody": {"reason": "the figure that fails is of texts that no user sends", "override": True},
    "ChatBody": {"messages": _ASKED, "max_tokens": 64, "temperature": 0},
    "ConversationBody": {"metadata": {"order": "7"}, "items": _ASKED},
    "ConversationItemsBody": {"items": _ASKED},
    "MetadataBody": {"metadata": {"order": "7"}},
    "CompletionBody": {"prompt": "Rice is", "max_tokens": 16},
    "EmbeddingBody": {"input": "a lunch box"},
    "ResponseBody": {"input": "안녕하세요", "max_output_tokens": 64},
    "InputTokensBody": {"input": "안녕하세요"},
    "BatchBody": {
        "input_file_id": "file-0123456789abcdef",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "MessagesBody": {"messages": _ASKED, "max_tokens": 64},
    "CountTokensBody": {"messages": _ASKED},
    "TextBody": {"text_input": "Rice is", "parameters": {"max_tokens": 16}},
    "InferBody": {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Rice is"]}]},
    "IndexBody": {"ready": True},
    "LoadBody": {},
    "UnloadBody": {},
    "OllamaChatBody": {"model": "demo", "messages": _ASKED, "stream": False},
    "OllamaGenerateBody": {"model": "demo", "prompt": "안녕하세요", "stream": False},
    "OllamaShowBody": {"model": "demo"},
    "OllamaEmbedBody": {"model": "demo", "input": "a lunch box"},
    "OllamaEmbeddingsBody": {"model": "demo", "prompt": "a lunch box"},
    "KnowledgeBody": {"title": "Hours", "text": "The shop opens at eleven."},
    "FeedbackBody": {"id": "gen-0123456789abcdef", "rating": 1, "comment": "short and right"},
    "SessionBody": {"title": "Lunch", "policy": "window"},
    "MessageBody": {"pinned": True},
    "ForkBody": {"at": "m_0123456789abcdef"},
    "KeyBody": {"name": "shop", "scopes": ["generate", "sessions"], "models": ["demo"]},
    "KeyChangeBody": {"limits": {"requests_per_minute": 60}},
    "RotateBody": {"grace_seconds": 3600},
    "RegenerateBody": {"parameters": {"max_new_tokens": 64}},
}
"""One body for each request model, which the demo model answers. Ids are made up: put your own in their place."""

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
    "audit": "Who changed what, and when.",
    "batches": "OpenAI's batches: requests of a file, answered while there is idle capacity.",
    "context": "What of a chat the next call would send.",
    "feedback": "Votes on answers.",
    "files": "OpenAI's files, which batches read.",
    "generate": "TGI's routes, with our own fields around them.",
    "keys": "Keys of callers: scopes, models, limits, ends.",
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
    r"/|/generate(_stream)?"
    r"|/v1/(chat/completions|completions|embeddings|messages|responses|sessions/\{session_id\}/regenerate)"
    r"|/v2/models/.*/(generate|generate_stream|infer)|/api/(chat|generate|embed|embeddings)"
)
"""Operations that make answers or embeddings, which a request with an Idempotency-Key is answered by once."""
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
            _secure(operation, None if is_open else scopes_of(method.upper(), path), keyed)


def _secure(operation: dict[str, Any], scopes: tuple[str, ...] | None, keyed: bool) -> None:
    """Says how to show the key: not at all where `scopes` is None, and on its own machine only where there is none."""
    if scopes is None:
        operation["security"] = []
        for status in ("401", "403"):
            del operation["responses"][status]
        return
    asked = [[scope] for scope in scopes] or [[]]
    operation["security"] = [*([] if keyed else [{}]), *({name: each} for each in asked for name in SCHEMES)]


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
