"""Which key may do what: every route of the app is tried with a key of each scope, and without a key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from service.api.edge import early_answers
from service.api.http.scopes import EVERY, is_counted
from service.api.router import plain_routes
from service.errors import Forbidden, Unauthorized
from service.ui import routes as ui
from tests.api.conftest import KEY
from tests.fake_service import World, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPEN: Final = "nobody's"
"""Without a key."""
ANY: Final = "any key's"
ENDLESS: Final = "/v1/live"
NO_JSON: Final[dict[str, Any]] = {"content": b"[", "headers": {"Content-Type": "application/json"}}
"""With this body nothing begins where the scope is there."""
CENSUS: Final = {
    OPEN: """
        GET /livez | GET /readyz | POST /ui/sign-in""",
    ANY: """
        GET /ui | GET /ui/ | GET /ui/audit | GET /ui/jobs | GET /ui/keys | GET /ui/live | GET /ui/models
        GET /ui/models/{} | GET /ui/models/{}/aliases/{} | GET /ui/models/{}/aliases/{}/rollout
        GET /ui/models/{}/compare | GET /ui/models/{}/versions/{}
        GET /ui/playground | GET /ui/sessions | GET /ui/sessions/{} | GET /ui/side-by-side | GET /ui/static/{}/{}
        GET /ui/{} | POST /ui/sign-out | GET /v1/usage""",
    "generate or models:read": """
        GET /v1/models | GET /v1/models/{} | GET /tokenizer_info
        GET /api/ps | POST /api/show | GET /api/tags | GET /api/version
        GET /v2 | GET /v2/health/live | GET /v2/health/ready
        GET /v2/models/{} | GET /v2/models/{}/ready | GET /v2/models/{}/versions/{}
        GET /v2/models/{}/versions/{}/ready""",
    "generate": """
        POST / | POST /generate | POST /generate_stream | POST /tokenize | POST /detokenize | POST /chat_tokenize
        POST /v1/sessions/{}/regenerate | POST /v1/context/preview | POST /v1/messages | POST /v1/messages/count_tokens
        POST /v1/completions | POST /v1/embeddings | GET POST /v1/chat/completions
        DELETE GET POST /v1/chat/completions/{} | GET /v1/chat/completions/{}/messages
        POST /v1/responses | POST /v1/responses/input_tokens | DELETE GET /v1/responses/{}
        POST /v1/responses/{}/cancel | GET /v1/responses/{}/input_items
        GET POST /v1/files | DELETE GET /v1/files/{} | GET /v1/files/{}/content
        GET POST /v1/batches | GET /v1/batches/{} | POST /v1/batches/{}/cancel
        POST /api/chat | POST /api/generate | POST /api/embed | POST /api/embeddings
        POST /v2/models/{}/generate | POST /v2/models/{}/generate_stream | POST /v2/models/{}/infer
        POST /v2/models/{}/versions/{}/generate | POST /v2/models/{}/versions/{}/generate_stream
        POST /v2/models/{}/versions/{}/infer""",
    "sessions": """
        GET POST /v1/sessions | POST /v1/sessions/import | DELETE GET PATCH /v1/sessions/{}
        GET /v1/sessions/{}/export | POST /v1/sessions/{}/fork
        GET /v1/sessions/{}/messages | DELETE PATCH /v1/sessions/{}/messages/{}
        POST /v1/conversations | DELETE GET POST /v1/conversations/{} | GET POST /v1/conversations/{}/items
        DELETE GET /v1/conversations/{}/items/{} | GET POST /v1/knowledge | DELETE GET /v1/knowledge/{}
        GET POST /v1/feedback | GET /v1/feedback/export | GET /v1/feedback/summary""",
    "models:read": """
        GET / | GET /docs | GET /docs/docs.js | GET /openapi.json | GET /health | GET /healthz | GET /info
        GET /v1/batching | GET /v1/deployments | GET /v1/instances | GET /v1/live
        GET /v1/jobs | GET /v1/jobs/{} | POST /v2/repository/index
        GET /v1/repository/models | GET /v1/repository/models/{} | GET /v1/repository/models/{}/compare
        GET /v1/repository/models/{}/versions/{} | GET /v1/repository/models/{}/aliases
        GET /v1/repository/models/{}/aliases/{} | GET /v1/repository/models/{}/aliases/{}/history
        GET /v1/repository/models/{}/aliases/{}/rollout""",
    "models:write": """
        POST /v1/deployments | DELETE /v1/deployments/{} | DELETE /v1/jobs/{}
        POST /v1/repository/models/{}/versions | DELETE PATCH /v1/repository/models/{}/versions/{}
        POST /v1/repository/models/{}/versions/{}/evaluate | POST /v1/repository/models/{}/versions/{}/quantize
        POST /v1/repository/models/{}/versions/{}/verify | DELETE PUT /v1/repository/models/{}/aliases/{}
        POST /v1/repository/models/{}/aliases/{}/rollback | DELETE PUT /v1/repository/models/{}/aliases/{}/rollout
        POST /v1/repository/models/{}/aliases/{}/rollout/promote
        POST /v2/repository/models/{}/load | POST /v2/repository/models/{}/unload""",
    "metrics": """
        GET /metrics""",
    "admin": """
        GET POST /v1/keys | DELETE GET PATCH /v1/keys/{} | POST /v1/keys/{}/rotate | GET /v1/audit
        GET POST /v1/profiles | GET /v1/profiles/compare | GET /v1/profiles/{} | GET /v1/profiles/{}/trace""",
}
"""Routes by whose they are; `admin` has every scope."""


COUNTED: Final = """
    POST / | POST /generate | POST /generate_stream | POST /tokenize | POST /detokenize | POST /chat_tokenize
    POST /v1/sessions/{}/regenerate | POST /v1/context/preview | POST /v1/messages | POST /v1/messages/count_tokens
    POST /v1/completions | POST /v1/embeddings | POST /v1/chat/completions
    POST /v1/responses | POST /v1/responses/input_tokens | POST /v1/batches
    POST /api/chat | POST /api/generate | POST /api/embed | POST /api/embeddings
    POST /v2/models/{}/generate | POST /v2/models/{}/generate_stream | POST /v2/models/{}/infer
    POST /v2/models/{}/versions/{}/generate | POST /v2/models/{}/versions/{}/generate_stream
    POST /v2/models/{}/versions/{}/infer"""
"""Routes that quotas count and refuse; every other one is there for a key whose quota is used up."""


def rows() -> dict[tuple[str, str], str]:
    found = dict[tuple[str, str], str]()
    for whose, routes in CENSUS.items():
        for route in re.split(r"[|\n]", routes.strip()):
            *methods, path = route.split()
            found |= {(method, path): whose for method in methods}
    return found


ROWS: Final = rows()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    directory: Path = tmp_path_factory.mktemp("scopes")
    async with serving(directory, admin_key=KEY) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bearers(world: World) -> dict[str, dict[str, str]]:
    """The headers of a key of each scope, and of no key."""
    found: dict[str, dict[str, str]] = {OPEN: {}}
    for scope in sorted(EVERY):
        body = {"name": scope, "scopes": [scope]}
        made = await world.client.post("/v1/keys", json=body, headers={"Authorization": f"Bearer {KEY}"})
        found[scope] = {"Authorization": f"Bearer {made.json()['key']}"}
    return found


async def test_no_route_is_without_a_row() -> None:
    found = ((method, route.path) for route in plain_routes(ui) for method in route.methods or ())
    routes = {(method, re.sub(r"\{[^}]*\}", "{}", path)) for method, path in found}
    assert {each for each in routes if each[0] != "HEAD"} == ROWS.keys()


async def test_quotas_count_what_has_something_answered() -> None:
    routes = [(method, route.path) for route in plain_routes(ui) for method in route.methods or ()]
    found = {f"{method} {re.sub(r'{[^}]*}', '{}', path)}" for method, path in routes if is_counted(method, path)}
    assert found == set(re.split(r"\s*[|\n]\s*", COUNTED.strip()))
    assert all(is_counted("POST", path) for path in early_answers.PATHS), "the door refuses no other"


async def test_a_key_does_what_its_scope_says(world: World, bearers: dict[str, dict[str, str]]) -> None:
    wrong = list[str]()
    for (method, path), whose in ROWS.items():
        for scope, headers in bearers.items():
            expected = _expected(whose, scope)
            if path == ENDLESS and expected is None:
                continue
            async with asyncio.timeout(20):
                options = {**NO_JSON, "headers": {**NO_JSON["headers"], **headers}}
                answer = await world.client.request(method, path.replace("{}", "x"), **options)
            told = answer.status_code if answer.status_code in (401, 403) else None
            if told != expected and not (path == "/ui/sign-in" and told == 401):
                wrong.append(f"{method} {path} with {scope}: {answer.status_code} {answer.text[:90]}")
    assert not wrong, "\n".join(wrong)


def _expected(whose: str, scope: str) -> int | None:
    """The refusal; None where the caller passes."""
    if whose == OPEN:
        return None
    if scope == OPEN:
        return Unauthorized.status
    return None if whose == ANY or scope in (*whose.split(" or "), "admin") else Forbidden.status


async def test_the_document_names_the_scope(world: World, bearers: dict[str, dict[str, str]]) -> None:
    paths = (await world.client.get("/openapi.json", headers=bearers["admin"])).json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            named = {scope for each in operation["security"] for scopes in each.values() for scope in scopes}
            whose = ROWS[method.upper(), re.sub(r"\{[^}]*\}", "{}", path)]
            assert named == (set() if whose in (OPEN, ANY) else set(whose.split(" or "))), f"{method} {path}"


async def test_what_no_route_has(world: World, bearers: dict[str, dict[str, str]]) -> None:
    head = await world.client.head("/v1/models", headers=bearers["sessions"])
    assert head.status_code == 403 and not head.content
    assert (await world.client.get("/v1/nothing", headers=bearers["sessions"])).status_code == 404
    refused = await world.client.get("/v1/models", headers=bearers["sessions"])
    assert "the scope generate or models:read: " in refused.text
