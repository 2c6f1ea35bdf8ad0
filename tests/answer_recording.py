"""This module records `service/api/openapi/answer_examples.json`: what a server with the demo model answers to each
operation of the OpenAPI document, one request after the other.

`python -m tests.answer_recording` writes the file again, in one to three minutes. Requests are the document's own
examples where they can be, and greedy elsewhere. An example of before stays where only measured numbers are new, so
that the file changes by what the service says differently.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from service.api.openapi.answer_examples import FILE
from service.api.openapi.body_examples import EXAMPLES
from tests.e2e.server import free_port, python, running
from tests.recorded_answers import Wording, same_but_for_numbers

Json = dict[str, Any]
GREEDY: Final = {"max_new_tokens": 3, "temperature": 0}
WAIT_SECONDS: Final = 120.0
JOINED: Final = ("text/event-stream", "application/x-ndjson", "text/plain")
"""Answers whose example is their text."""
BATCH_LINE: Final = {
    "custom_id": "first",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": EXAMPLES["ChatBody"],
}


class Scribe:
    """Asks operations of a server, and keeps the answers by operation, status and media type."""

    def __init__(self, client: httpx.Client, wording: Wording) -> None:
        self._client, self._wording = client, wording
        self._paths: Json = client.get("/openapi.json").json()["paths"]
        self.kept: dict[str, dict[str, Json]] = {}

    def __call__(self, operation: str, *, body: Json | None = None, keep: bool = True, **rest: Any) -> Any:
        """Returns the answer: JSON where it is JSON, else text. `body` replaces the document's example, `places` fills
        the path, and the rest is httpx's. Asks again where the server is not ready yet. Raises AssertionError for an
        answer that is no success."""
        method, path = operation.split(" ")
        places: Mapping[str, str] = rest.pop("places", {})
        if not {"content", "files"} & rest.keys():
            rest["json"] = self._example(method, path) if body is None else body
        deadline = time.monotonic() + WAIT_SECONDS
        answer = self._client.request(method, path.format(**places), **rest)
        while answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and time.monotonic() < deadline:
            time.sleep(0.2)  # a version unloads, or loads
            answer = self._client.request(method, path.format(**places), **rest)
        assert answer.is_success, f"{operation}: {answer.status_code} {answer.text}"
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        read = answer.text if media_type in JOINED or not answer.content else answer.json()
        if keep and answer.content:
            self._keep(operation, answer.status_code, media_type, read)
        return read

    def first_event(self, operation: str) -> None:
        """Keeps the first event of a stream that does not end."""
        method, path = operation.split(" ")
        with self._client.stream(method, path) as answer:
            event = next(text for text in answer.iter_text() if "data: " in text)
            self._keep(operation, answer.status_code, "text/event-stream", event)

    def until(self, operation: str, field: str, *wanted: str, places: Mapping[str, str]) -> Json:
        """Asks until a field has one of the wanted values, and keeps the last answer."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found: Json = self(operation, places=places)
            if found[field] in wanted:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{operation}: {field} did not become {wanted}")

    def _example(self, method: str, path: str) -> Any:
        body = self._paths[path][method.lower()].get("requestBody", {}).get("content", {})
        return body.get("application/json", {}).get("example")

    def _keep(self, operation: str, status: int, media_type: str, answer: Any) -> None:
        told = self._wording.settled(operation, answer)
        self.kept.setdefault(operation, {}).setdefault(str(status), {})[media_type] = told


def record(ask: Scribe) -> None:
    """Asks every operation."""
    for part in (generating, operations, chats, stored, files_and_batches, kserve, ollama, versions, jobs):
        part(ask)


def generating(ask: Scribe) -> None:
    for path in ("/", "/generate"):
        ask(f"POST {path}")
        ask(f"POST {path}", body={"inputs": "Rice is", "stream": True, "parameters": GREEDY})
    ask("POST /generate_stream", body={"inputs": "Rice is", "parameters": GREEDY})
    for path, body in (("/v1/chat/completions", "ChatBody"), ("/v1/completions", "CompletionBody")):
        ask(f"POST {path}")
        ask(f"POST {path}", body={**EXAMPLES[body], "max_tokens": 3, "stream": True})
    ask("POST /v1/messages")
    ask("POST /v1/messages", body={**EXAMPLES["MessagesBody"], "max_tokens": 3, "stream": True})
    for path in ("/v1/embeddings", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/chat_tokenize"):
        ask(f"POST {path}")
    for path in ("/v1/models", "/tokenizer_info", "/v1/context/preview"):
        ask(f"{'POST' if path.endswith('preview') else 'GET'} {path}")
    ask("GET /v1/models/{id}", places={"id": "demo"})


def operations(ask: Scribe) -> None:
    paths = ("/", "/livez", "/healthz", "/readyz", "/health", "/metrics", "/info", "/v1/deployments", "/v1/batching")
    for path in (*paths, "/v1/instances"):
        ask(f"GET {path}")
    ask.first_event("GET /v1/live")
    profiles = [profiled(ask, keep) for keep in (True, False)]
    ask("GET /v1/profiles")
    ask("GET /v1/profiles/{id}/trace", places={"id": profiles[0]})
    ask("GET /v1/profiles/compare", params={"a": profiles[0], "b": profiles[1]})


def profiled(ask: Scribe, keep: bool) -> str:
    """Returns a profile of an answer's steps."""
    profile = str(ask("POST /v1/profiles", keep=keep)["id"])
    ask("POST /generate", keep=False)
    ask.until("GET /v1/profiles/{id}", "state", "succeeded", places={"id": profile})
    return profile


def chats(ask: Scribe) -> None:
    session = ask("POST /v1/sessions")["id"]
    of = {"session_id": session}
    turn = {"session_id": session, **EXAMPLES["GenerateBody"], "parameters": {"temperature": 0, "max_new_tokens": 64}}
    answer = ask("POST /generate", body=turn, keep=False)
    elsewhere = {**turn, "session_id": ask("POST /v1/sessions", keep=False)["id"], "parameters": GREEDY}
    other = ask("POST /generate", body=elsewhere, keep=False)
    vote = {**EXAMPLES["FeedbackBody"], "id": answer["id"]}
    for preferred in ({}, {"preferred_over": other["id"]}):
        ask("POST /v1/feedback", body={**vote, **preferred})
    for path in ("", "/summary", "/export"):
        ask(f"GET /v1/feedback{path}")
    message = ask("GET /v1/sessions/{session_id}/messages", places=of)["data"][0]["id"]
    ask("PATCH /v1/sessions/{session_id}/messages/{message_id}", places={**of, "message_id": message})
    ask("POST /v1/sessions/{session_id}/regenerate", places=of)
    again = {"parameters": GREEDY, "stream": True}
    ask("POST /v1/sessions/{session_id}/regenerate", places=of, body=again)
    ask("PATCH /v1/sessions/{session_id}", places=of)
    ask("POST /v1/sessions/{session_id}/fork", places=of, body={"at": message})
    exported = ask("GET /v1/sessions/{session_id}/export", places=of)
    ask("POST /v1/sessions/import", content=exported.encode(), headers={"Content-Type": "application/x-ndjson"})
    for path in ("", "/{session_id}"):
        ask(f"GET /v1/sessions{path}", places=of)
    ask("DELETE /v1/sessions/{session_id}/messages/{message_id}", places={**of, "message_id": message})
    knowledge = {"knowledge_id": ask("POST /v1/knowledge")["id"]}
    for path in ("", "/{knowledge_id}"):
        ask(f"GET /v1/knowledge{path}", places=knowledge)


def stored(ask: Scribe) -> None:
    completion = ask("POST /v1/chat/completions", body={**EXAMPLES["ChatBody"], "store": True}, keep=False)["id"]
    of = {"completion_id": completion}
    ask("POST /v1/chat/completions/{completion_id}", places=of)
    for path in ("", "/{completion_id}", "/{completion_id}/messages"):
        ask(f"GET /v1/chat/completions{path}", places=of)
    ask("DELETE /v1/chat/completions/{completion_id}", places=of)
    response = {"response_id": ask("POST /v1/responses")["id"]}
    ask("POST /v1/responses", body={**EXAMPLES["ResponseBody"], "max_output_tokens": 3, "stream": True})
    ask("POST /v1/responses/input_tokens")
    for path in ("", "/input_items"):
        ask(f"GET /v1/responses/{{response_id}}{path}", places=response)
    ask("DELETE /v1/responses/{response_id}", places=response)
    conversation = {"conversation_id": ask("POST /v1/conversations")["id"]}
    one = "/v1/conversations/{conversation_id}"
    ask(f"GET {one}", places=conversation)
    ask(f"POST {one}", places=conversation)
    ask(f"POST {one}/items", places=conversation)
    item = ask(f"GET {one}/items", places=conversation)["data"][0]["id"]
    for method in ("GET", "DELETE"):
        ask(f"{method} {one}/items/{{item_id}}", places={**conversation, "item_id": item})
    ask(f"DELETE {one}", places=conversation)


def files_and_batches(ask: Scribe) -> None:
    upload: Json = {
        "data": {"purpose": "batch"},
        "files": {"file": ("requests.jsonl", json.dumps(BATCH_LINE).encode())},
    }
    file = ask("POST /v1/files", **upload)["id"]
    body = {**EXAMPLES["BatchBody"], "input_file_id": file}
    of = {"batch_id": ask("POST /v1/batches", body=body)["id"]}
    ask("POST /v1/batches/{batch_id}/cancel", places=of)
    ask.until("GET /v1/batches/{batch_id}", "status", "cancelled", "completed", places=of)
    of = {"batch_id": ask("POST /v1/batches", body=body)["id"]}
    done = ask.until("GET /v1/batches/{batch_id}", "status", "completed", places=of)
    for part in ({}, {"Range": "bytes=0-"}):
        ask("GET /v1/files/{file_id}/content", places={"file_id": done["output_file_id"]}, headers=part)
    ask("GET /v1/batches")
    ask("GET /v1/files")
    for method in ("GET", "DELETE"):
        ask(f"{method} /v1/files/{{file_id}}", places={"file_id": file})


def kserve(ask: Scribe) -> None:
    for path in ("", "/health/live", "/health/ready"):
        ask(f"GET /v2{path}")
    places = {"model": "demo", "version": "2"}
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        for path in ("", "/ready"):
            ask(f"GET {model}{path}", places=places)
        for path in ("/generate", "/infer"):
            ask(f"POST {model}{path}", places=places)
        body = {"text_input": "Rice is", "parameters": {"max_tokens": 3, "temperature": 0}}
        ask(f"POST {model}/generate_stream", places=places, body=body)
    ask("POST /v2/repository/index", body={})
    for verb in ("load", "unload"):
        ask(f"POST /v2/repository/models/{{model}}/{verb}", places={"model": "demo"})
    ask("POST /v2/repository/models/{model}/load", places={"model": "demo"})


def ollama(ask: Scribe) -> None:
    for path in ("version", "tags", "ps"):
        ask(f"GET /api/{path}")
    for path in ("show", "embed", "embeddings", "chat", "generate"):
        ask(f"POST /api/{path}")
    short = {"stream": True, "options": {"num_predict": 3, "temperature": 0}}
    ask("POST /api/chat", body={**EXAMPLES["OllamaChatBody"], **short})
    ask("POST /api/generate", body={**EXAMPLES["OllamaGenerateBody"], **short})


def versions(ask: Scribe) -> None:
    of, model = {"name": "demo", "version": "1", "alias": "stable"}, "/v1/repository/models/{name}"
    ask("GET /v1/repository/models")
    for path in ("", "/versions/{version}"):
        ask(f"GET {model}{path}", places=of)
    ask(f"POST {model}/versions/{{version}}/verify", places=of)
    ask(f"GET {model}/compare", places=of, params={"a": "1", "b": "2"})
    alias = f"{model}/aliases/{{alias}}"
    for version in ("2", "1"):
        ask(f"PUT {alias}", places=of, body={**EXAMPLES["AliasBody"], "version": version})
    ask(f"POST {alias}/rollback", places=of)
    ask(f"PUT {alias}", places=of)
    ask(f"GET {model}/aliases", places=of)
    for path in ("", "/history"):
        ask(f"GET {alias}{path}", places=of)
    ask(f"PUT {alias}/rollout", places=of)
    ask(f"GET {alias}/rollout", places=of)
    ask(f"POST {alias}/rollout/promote", places=of)
    back = {**EXAMPLES["RolloutBody"], "candidate": "1"}
    ask(f"PUT {alias}/rollout", places=of, body=back, keep=False)
    ask(f"DELETE {alias}/rollout", places=of, params={"reason": "answers became worse"})
    ask(f"DELETE {alias}", places=of, params={"reason": "it is over"})


def jobs(ask: Scribe) -> None:
    of = {"name": "demo", "version": "1"}
    one = "/v1/repository/models/{name}/versions/{version}"
    quantized = {"id": ask(f"POST {one}/quantize", places=of)["id"]}
    done = ask.until("GET /v1/jobs/{id}", "state", "succeeded", "failed", places=quantized)
    evaluated = ask(f"POST {one}/evaluate", places=of)["id"]
    ask("POST /v1/repository/models/{name}/versions", places={"name": "qwen"})
    ask("GET /v1/jobs")
    ask("DELETE /v1/jobs/{id}", places={"id": evaluated})
    ask("POST /v1/deployments")
    ask("DELETE /v1/deployments/{reference}", places={"reference": "demo:2"})
    ask(f"DELETE {one}", places={"name": "demo", "version": str(done["result"]["version"])})


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        data.mkdir()
        port = free_port()
        command = python("-m", "uvicorn", "--factory", "service.app:create", f"--port={port}")
        with running(command, data, Path(directory) / "log", port) as server:
            ask = Scribe(
                server.client(WAIT_SECONDS), Wording({str(data): "/data", server.url: "http://127.0.0.1:3000"})
            )
            record(ask)
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for operation, statuses in ask.kept.items():
        for status, kinds in statuses.items():
            for kind, answer in kinds.items():
                old = before.get(operation, {}).get(status, {}).get(kind)
                kinds[kind] = old if same_but_for_numbers(old, answer) else answer
    FILE.write_text(json.dumps(ask.kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
