"""A path decides the dialect of its errors: a client's own where its prefix is listed, OpenAI's where OpenAI has the
route, the native one everywhere else."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ErrorDialect(StrEnum):
    """The words of an error's body; `api.http.errors` writes them."""

    NATIVE = "native"
    OPENAI = "openai"
    TRITON = "triton"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


PREFIXES: Final = {
    "/v2": ErrorDialect.TRITON,
    "/api": ErrorDialect.OLLAMA,
    "/v1/messages": ErrorDialect.ANTHROPIC,
}
"""Paths that belong to one dialect with everything below them, also where this server lacks the route."""
SHARED: Final = "/v1/models"
"""A path that OpenAI and Anthropic both have; a header tells their clients apart."""
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


def error_dialect(path: str, is_anthropic: bool = False) -> ErrorDialect:
    """Returns the dialect of a path's errors. `/v1/*` except our own resources is OpenAI's: a client that uses a `/v1`
    path which this server lacks expects OpenAI's error. `is_anthropic`: the request says that its client is
    Anthropic's."""
    if is_anthropic and _below(path, SHARED):
        return ErrorDialect.ANTHROPIC
    for prefix, dialect in PREFIXES.items():
        if _below(path, prefix):
            return dialect
    if path.startswith("/v1/") and not any(_below(path, prefix) for prefix in OURS_UNDER_V1):
        return ErrorDialect.OPENAI
    return ErrorDialect.NATIVE


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
