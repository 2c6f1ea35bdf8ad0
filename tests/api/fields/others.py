"""These tables say what the fields of this server's own routes do: sessions, repository, deployments, profiles, votes,
knowledge."""

from __future__ import annotations

from typing import Final

from service.api.operations import keys
from service.api.operations import schemas as operations
from service.api.repository import schemas as repository
from service.api.sessions import feedback, knowledge
from service.api.sessions import schemas as sessions
from tests.api.fields.cases import Table, acts, notes

SESSION: Final = Table(
    sessions.SessionBody,
    "/v1/sessions",
    {},
    (
        acts("title", "Lunch", "answer.title"),
        acts("model", "demo:1", "answer.model"),
        acts("system", "be brief", "answer.system"),
        acts("policy", "middle", "answer.policy"),
        acts("metadata", {"a": 1}, "answer.metadata"),
        acts("ttl_seconds", 60, "answer.ttl_seconds"),
    ),
)
MESSAGE: Final = Table(
    sessions.MessageBody,
    "/v1/sessions/<session>/messages/<message>",
    {"pinned": False},
    (acts("content", "tea", "answer.content"), acts("pinned", True, "answer.pinned")),
    "PATCH",
)
FORK: Final = Table(
    sessions.ForkBody,
    "/v1/sessions/<session>/fork",
    {"at": "<message>"},
    (acts("at", "m_0", "status", 404),),
)
FEEDBACK: Final = Table(
    feedback.FeedbackBody,
    "/v1/feedback",
    {"id": "<answer>", "rating": 1},
    (
        acts("id", "gen-nobody", "status", 404),
        acts("rating", -1, "answer.rating"),
        acts("preferred_over", "<answer>", "answer.preferred_over", bool),
        acts("comment", "warm", "answer.comment"),
    ),
)
KNOWLEDGE: Final = Table(
    knowledge.KnowledgeBody,
    "/v1/knowledge",
    {"text": "tea is warm"},
    (
        acts("text", "tea is cold", "answer.text"),
        acts("title", "Tea", "answer.title"),
        acts("session_id", "<session>", "answer.session_id", bool),
    ),
)
DEPLOYMENT: Final = Table(
    operations.DeploymentBody,
    "/v1/deployments",
    {"model": "demo:2"},
    (
        acts("model", "demo:1", "answer.model"),
        acts("replicas", 2, "orders.0.replicas"),
        acts("draft", "demo:1", "orders.0.draft"),
        acts("engine", "vllm", "orders.0.engine"),
        acts("engine_options", {"tensor_parallel": 2}, "orders.0.engine_options"),
        acts("max_model_len", 300, "orders.0.max_model_len"),
    ),
)
PROFILE: Final = Table(
    operations.ProfileBody,
    "/v1/profiles",
    {"steps": 1},
    (
        acts("steps", 2, "answer.steps"),
        acts("model", "demo:7", "status", 404),
        acts("kind", "memory", "answer.kind"),
    ),
)
MODELS: Final = "/v1/repository/models/other"
IMPORT: Final = Table(
    repository.ImportBody,
    f"{MODELS}/versions",
    {"source": "somewhere"},
    (
        acts("source", "elsewhere", "orders.0.source"),
        acts("precision", "int8", "orders.0.precision"),
        acts("version", "9", "orders.0.version"),
        acts("revision", "main", "orders.0.revision"),
        acts("adapter_of", "other:1", "orders.0.adapter_of"),
        acts("evaluate", "none", "orders.0.evaluate"),
    ),
)
QUANTIZE: Final = Table(
    repository.QuantizeBody,
    f"{MODELS}/versions/1/quantize",
    {"precision": "int4"},
    (
        acts("precision", "int8", "orders.0.precision"),
        acts("group_size", 128, "orders.0.group_size"),
        acts("evaluate", "none", "orders.0.evaluate"),
    ),
)
PARSERS: Final = Table(
    repository.ParsersBody,
    f"{MODELS}/versions/1",
    {},
    (
        acts("reasoning_parser", "think-begun", "answer.reasoning_parser"),
        acts("tool_parser", "hermes", "answer.tool_parser"),
    ),
    "PATCH",
)
EVALUATE: Final = Table(
    repository.EvaluateBody,
    f"{MODELS}/versions/1/evaluate",
    {},
    (acts("effort", "full", "orders.0.effort"),),
)
ALIAS: Final = Table(
    repository.AliasBody,
    f"{MODELS}/aliases/<absent>",
    {"version": "1", "reason": "it is hot", "override": True},
    (
        acts("version", "2", "answer.version"),
        acts("reason", "it is warm", "answer.change.reason"),
        acts("override", False, "status", 409),
    ),
    "PUT",
)
REASON: Final = Table(
    repository.ReasonBody,
    f"{MODELS}/aliases/<changed>/rollback",
    {},
    (acts("reason", "it is cold", "answer.change.reason"),),
)
ROLLOUT: Final = Table(
    repository.RolloutBody,
    f"{MODELS}/aliases/<alias>/rollout",
    {"candidate": "2", "weight": 10, "override": True},
    (
        acts("candidate", "3", "answer.candidate"),
        acts("weight", 20, "answer.weight"),
        acts("sticky", False, "answer.sticky"),
        acts("shadow", True, "answer.shadow"),
        acts("guards.error_rate", 0.5, "answer.guards.error_rate"),
        acts("guards.ttft_p95_ratio", 2.0, "answer.guards.ttft_p95_ratio"),
        acts("guards.min_requests", 7, "answer.guards.min_requests"),
        acts("override", False, "status", 409),
    ),
    "PUT",
)
CANDIDATE: Final = Table(
    repository.CandidateBody,
    f"{MODELS}/aliases/<trial>/rollout/promote",
    {"reason": "it is hot", "override": True},
    (acts("reason", "it is warm", "answer.reason"), acts("override", False, "status", 409)),
)
_BOUNDS: Final = (
    acts("models", ["demo:1"], "answer.models"),
    acts("expires_at", "2999-01-01T00:00:00+00:00", "answer.expires_at"),
    *(acts(f"limits.{name}", 7, f"answer.limits.{name}") for name in keys.LimitsBody.model_fields),
)
KEY: Final = Table(
    keys.KeyBody,
    "/v1/keys",
    {"name": "shop", "scopes": ["generate"]},
    (acts("name", "tea", "answer.name"), acts("scopes", ["metrics"], "answer.scopes"), *_BOUNDS),
)
KEY_CHANGE: Final = Table(
    keys.KeyChangeBody,
    "/v1/keys/<key>",
    {},
    (acts("name", "tea", "answer.name"), acts("scopes", ["metrics"], "answer.scopes"), *_BOUNDS),
    "PATCH",
)
ROTATE: Final = Table(keys.RotateBody, "/v1/keys/<key>/rotate", {}, (notes("grace_seconds", 60, -1),))
TABLES: Final = (
    KEY, KEY_CHANGE, ROTATE, SESSION, MESSAGE, FORK, FEEDBACK, KNOWLEDGE, DEPLOYMENT, PROFILE, IMPORT, QUANTIZE,
    PARSERS, EVALUATE, ALIAS, REASON, ROLLOUT, CANDIDATE
)  # fmt: skip
