"""A path decides whose words its errors speak: OpenAI's where OpenAI has the route, ours everywhere else."""

from __future__ import annotations

from typing import Final

OURS_UNDER_V1: Final = (
    "/v1/sessions",
    "/v1/context",
    "/v1/repository",
    "/v1/jobs",
    "/v1/deployments",
    "/v1/keys",
    "/v1/batching",
    "/v1/profiles",
    "/v1/audit",
    "/v1/usage",
    "/v1/feedback",
    "/v1/knowledge",
)


def is_openai(path: str) -> bool:
    """True for `/v1/*` but our own nouns there: a client that asks there for what we lack expects OpenAI's error."""
    return path.startswith("/v1/") and not any(_below(path, prefix) for prefix in OURS_UNDER_V1)


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
