"""This table says what query parameters, headers and the fields of a form do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.storage.cursors import encode

Shown = Callable[[Any, Any], bool]
"""Takes the answers with and without the parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`value` may be made of the answer without the parameter. `beside` are parameters of both requests, `body` is
    theirs too. What `shows` compares are the answers. Without `shows` the status is `status` with the parameter only.
    With `is_kept` the value is in a file of the repository afterwards."""

    operation: str
    name: str
    value: Any
    shows: Shown | None = None
    status: int = 200
    is_header: bool = False
    is_kept: bool = False
    beside: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


def ids(answer: Any) -> list[Any]:
    """What tells the entries of a page apart."""
    names = ("id", "version", "name", "number", "model")
    return [next((each[name] for name in names if each.get(name)), None) for each in data(answer)]


def data(answer: Any) -> list[Any]:
    return list(answer["data"] if "data" in answer else answer["versions"])


def one(found: Any, without: Any) -> bool:
    return len(data(found)) == 1 < len(data(without)) and ids(found)[0] == ids(without)[0]


def turned(found: Any, without: Any) -> bool:
    return len(ids(found)) > 1 and ids(found) == ids(without)[::-1]


def behind(found: Any, without: Any) -> bool:
    return len(ids(found)) > 0 and ids(found) == ids(without)[1:]


def other(found: Any, without: Any) -> bool:
    """The next page has something, and nothing of the first."""
    return len(data(found)) > 0 and not set(ids(found)) & set(ids(without))


def fewer(found: Any, without: Any) -> bool:
    return 0 < len(data(found)) < len(data(without))


def longer(found: Any, without: Any) -> bool:
    return len(found) > len(without) > 0 and without in found


def none(found: Any, without: Any) -> bool:
    return not data(found) and len(data(without)) > 0


def first(answer: Any) -> str:
    return str(ids(answer)[0])


def cursor(answer: Any) -> str:
    return str(answer["next_cursor"])


def page(operation: str, *, order: str = "") -> tuple[Parameter, ...]:
    """OpenAI's lists: `after` and `limit`, and `order` with the one that is not the default."""
    ordered = (Parameter(operation, "order", order, turned),) if order else ()
    return (Parameter(operation, "limit", "1", one), Parameter(operation, "after", first, behind), *ordered)


def pages(operation: str) -> tuple[Parameter, ...]:
    """Our own lists: `limit` and `cursor`."""
    return (
        Parameter(operation, "limit", "1", lambda found, without: len(data(found)) == 1 < len(data(without))),
        Parameter(operation, "cursor", cursor, other, beside={"limit": "1"}),
    )


def if_match(operation: str, body: Mapping[str, Any] | None = None) -> Parameter:
    return Parameter(operation, "if-match", '"977"', status=412, is_header=True, body=body)


TURN: Final = {"role": "user", "content": "hi"}
TENSORS: Final = {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}]}
CONTENT: Final = "get /v1/files/{file_id}/content"
COMPLETIONS: Final = "get /v1/chat/completions"
MODEL: Final = "/v1/repository/models/{name}"
ALIAS: Final = f"{MODEL}/aliases/{{alias}}"
MESSAGE: Final = "/v1/sessions/{session_id}/messages/{message_id}"
CONVERSATION: Final = "/v1/conversations/{conversation_id}"
AUDIT: Final = "get /v1/audit"
VOTES: Final = "get /v1/feedback"
USAGE: Final = "get /v1/usage"
PARAMETERS: Final[tuple[Parameter, ...]] = (
    *page(COMPLETIONS, order="desc"),
    Parameter(COMPLETIONS, "model", "other:1", fewer),
    Parameter(COMPLETIONS, "metadata", {"metadata[order]": "7"}, fewer),
    *page(f"{COMPLETIONS}/{{completion_id}}/messages", order="desc"),
    *page("get /v1/files", order="asc"),
    Parameter(CONTENT, "Range", "bytes=2-5", lambda found, without: found == without[2:6], status=206, is_header=True),
    Parameter(CONTENT, "If-Range", '"x"', is_header=True, beside={"Range": "bytes=2-5"}, shows=longer),
    Parameter("get /v1/files", "purpose", "batch_output", none),
    Parameter("get /v1/responses/{response_id}", "stream", "true", status=400),
    *page("get /v1/responses/{response_id}/input_items", order="asc"),
    *page("get /v1/conversations/{conversation_id}/items", order="asc"),
    *page("get /v1/batches"),
    *pages("get /v1/sessions"),
    Parameter("get /v1/sessions", "query", "salmon", fewer),
    *pages("get /v1/sessions/{session_id}/messages"),
    if_match("patch /v1/sessions/{session_id}", {"title": "x"}),
    if_match("delete /v1/sessions/{session_id}"),
    Parameter("delete /v1/sessions/{session_id}", "erase", "perhaps", status=422),
    if_match(f"patch {MESSAGE}", {"pinned": True}),
    if_match(f"delete {MESSAGE}"),
    if_match("post /v1/sessions/{session_id}/regenerate", {}),
    if_match("post /v1/sessions/{session_id}/fork", {"at": "<message>"}),
    if_match(f"post {CONVERSATION}", {"metadata": {"order": "7"}}),
    if_match(f"delete {CONVERSATION}"),
    if_match(f"post {CONVERSATION}/items", {"items": [TURN]}),
    if_match(f"delete {CONVERSATION}/items/{{item_id}}"),
    *pages("get /v1/knowledge"),
    Parameter(
        "get /v1/knowledge",
        "session_id",
        lambda answer: next(filter(None, (each["session_id"] for each in answer["data"]))),
        fewer,
    ),
    *pages(VOTES),
    Parameter(VOTES, "model", "other", fewer),
    Parameter(VOTES, "version", "2", fewer),
    Parameter(f"{VOTES}/summary", "model", "other", fewer),
    Parameter("get /v1/models", "limit", "1", one, beside={"anthropic-version": "2023-06-01"}),
    Parameter("get /v1/models", "after_id", first, behind, beside={"anthropic-version": "2023-06-01"}),
    Parameter(
        "get /v1/models",
        "before_id",
        lambda answer: str(ids(answer)[1]),
        lambda found, without: ids(found) == ids(without)[:1],
        beside={"anthropic-version": "2023-06-01"},
    ),
    Parameter(
        "get /v1/models",
        "anthropic-version",
        "2023-06-01",
        lambda found, without: found["data"][0]["type"] == "model" and "type" not in without["data"][0],
        is_header=True,
    ),
    Parameter(
        "get /v1/models/{id}",
        "anthropic-version",
        "2023-06-01",
        lambda found, without: "type" in found and "type" not in without,
        is_header=True,
    ),
    *(
        if_match(f"post {path}", {"session_id": "<session>", "messages": [TURN]})
        for path in ("/", "/generate", "/generate_stream", "/v1/chat/completions", "/v1/context/preview")
    ),
    if_match("post /v1/messages", {"session_id": "<session>", "messages": [TURN], "max_tokens": 2}),
    if_match("post /v1/responses", {"conversation": "<conversation>", "input": "hi", "max_output_tokens": 2}),
    *(
        Parameter(
            f"post /v2/models/{{model}}{version}/infer",
            "Inference-Header-Content-Length",
            "5",
            status=400,
            is_header=True,
            body=TENSORS,
        )
        for version in ("", "/versions/{version}")
    ),
    Parameter("get /tokenizer_info", "model", "nobody", status=404),
    Parameter("get /metrics", "compat", "vllm", lambda found, without: "vllm:" in found and "vllm:" not in without),
    *pages(AUDIT),
    Parameter(AUDIT, "action", "keys.create", fewer),
    Parameter(AUDIT, "outcome", "begun", fewer),
    Parameter(AUDIT, "subject", "other@stable", fewer),
    Parameter(AUDIT, "owner", "nobody", none),
    Parameter(AUDIT, "since", "2999-01-01T00:00:00Z", none),
    Parameter(AUDIT, "until", "2001-01-01", none),
    *pages(USAGE),
    Parameter(USAGE, "by", "week", status=422),
    Parameter(USAGE, "key", "key_nobody", none),
    Parameter(USAGE, "model", "other", fewer),
    Parameter(USAGE, "since", "2999-01-01T00:00:00Z", status=422),
    Parameter(USAGE, "until", "2001-01-01T00:00:00Z", none),
    *pages("get /v1/profiles"),
    *(Parameter("get /v1/profiles/compare", each, "x", status=404, beside={"a": "x", "b": "x"}) for each in "ab"),
    Parameter("get /v1/repository/models", "query", "oth", fewer),
    Parameter("get /v1/repository/models", "cursor", lambda answer: encode("models", first(answer), ""), behind),
    *pages("get /v1/repository/models/{name}"),
    *(Parameter(f"get {MODEL}/compare", each, "1", beside={"a": "1", "b": "1"}) for each in "ab"),
    Parameter(f"delete {MODEL}/versions/{{version}}", "reason", "it is worse", is_kept=True),
    Parameter(f"delete {ALIAS}", "reason", "it is over", is_kept=True),
    Parameter(f"delete {ALIAS}/rollout", "reason", "it went badly", is_kept=True),
    *(if_match(f"{method} {ALIAS}", {"version": "2", "override": True, "reason": "x"}) for method in ("put", "delete")),
    if_match(f"post {ALIAS}/rollback", {"reason": "x"}),
    if_match(f"put {ALIAS}/rollout", {"candidate": "3", "weight": 20, "override": True}),
    if_match(f"delete {ALIAS}/rollout"),
    if_match(f"post {ALIAS}/rollout/promote", {"override": True, "reason": "x"}),
    Parameter(f"get {ALIAS}/history", "at", "2026-01-01T00:00:00Z", none),
)
