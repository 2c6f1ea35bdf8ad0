"""A path decides the dialect of its errors: OpenAI's where OpenAI has the route, the native one everywhere else."""

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
    "/v1/live",
    "/v1/profiles",
    "/v1/audit",
    "/v1/usage",
    "/v1/feedback",
    "/v1/knowledge",
)


def is_openai(path: str) -> bool:
    """Returns True for `/v1/*` except our own resources: a client that uses a `/v1` path which this server lacks
    expects OpenAI's error."""
    return path.startswith("/v1/") and not any(_below(path, prefix) for prefix in OURS_UNDER_V1)


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
