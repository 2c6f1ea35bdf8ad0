"""This table says what the fields of the routes for embeddings do."""

from __future__ import annotations

from typing import Any, Final

from service.api.ollama import embeddings as ollama_embeddings
from service.api.openai import embeddings
from tests.api.fields.cases import Table, acts
from tests.api.fields.native import holds

OPENAI: Final = Table(
    embeddings.EmbeddingBody,
    "/v1/embeddings",
    {"input": "a salmon"},
    (
        acts("input", "tea", "engine.prompt", holds("tea")),
        acts("model", "demo:1", "answer.model"),
        acts("encoding_format", "base64", "answer.data.0.embedding", lambda found: isinstance(found, str)),
        acts("dimensions", 3, "answer.data.0.embedding", lambda numbers: len(numbers) == 3),
        acts("user", "minji", "log.user"),
        acts("pooling", "mean"),
        acts("normalize", False),
        acts("truncate_prompt_tokens", 2, "engine.ids", lambda ids: len(ids) == 2),
        acts("cache_salt", "pepper", "engine.salt", holds("pepper")),
        acts("priority", 4, "engine.priority"),
        acts("deadline_ms", 60_000, "engine.has_deadline", True),
        acts("request_id", "mine-1", "id"),
    ),
)
LONG: Final = "a salmon " * 30
WINDOW: Final[dict[str, Any]] = {"num_ctx": 8}
EMBED: Final = Table(
    ollama_embeddings.OllamaEmbedBody,
    "/api/embed",
    {"model": "demo", "input": "a salmon"},
    (
        acts("model", "demo:1", "answer.model"),
        acts("options.num_ctx", 8, "status", 400, input=LONG, truncate=False),
        acts("keep_alive", 60, "kept.demo:2", 60.0),
        acts("input", "tea", "engine.prompt", holds("tea")),
        acts("truncate", False, "status", 400, input=LONG, options=WINDOW),
        acts("dimensions", 3, "answer.embeddings.0", lambda numbers: len(numbers) == 3),
    ),
)
EMBEDDINGS: Final = Table(
    ollama_embeddings.OllamaEmbeddingsBody,
    "/api/embeddings",
    {"model": "demo", "prompt": "a salmon"},
    (
        acts("model", "demo:7", "status", 404),
        acts("options.num_ctx", 8, "engine.ids", lambda ids: len(ids) <= 8, prompt=LONG),
        acts("keep_alive", 70, "kept.demo:2", 70.0),
        acts("prompt", "tea", "engine.prompt", holds("tea")),
    ),
)
TABLES: Final = (OPENAI, EMBED, EMBEDDINGS)
