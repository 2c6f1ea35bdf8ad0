"""Every operation is refused to a caller who lacks the scope that the document names, and needs no other."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from service.api.edge import auth
from service.api.http.scopes import EVERY
from service.errors import Forbidden
from tests.conformance import documented
from tests.fake_service import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATIONS = sorted((method, route.path) for route in documented() for method in route.methods or ())
ENDLESS = "/v1/live"
NO_JSON: dict[str, Any] = {"content": b"[", "headers": {"Content-Type": "application/json"}}
"""With this body nothing begins where the scope is there."""


async def test_the_scope_decides(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = (await shared.client.get("/openapi.json")).json()["paths"]
    assert len(OPERATIONS) > 100
    for method, path in OPERATIONS:
        security = paths[path][method.lower()]["security"]
        needed = {scope for each in security for scopes in each.values() for scope in scopes}
        address = re.sub(r"\{[^}]*\}", "x", path)
        monkeypatch.setattr(auth, "EVERY", EVERY - needed)
        async with asyncio.timeout(20):  # an endless stream is no refusal
            without = await shared.client.request(method, address, **NO_JSON)
        assert (without.status_code == Forbidden.status) == bool(needed), f"{method} {path}: {without.text}"
        assert all(f"the scope {scope}: " in without.text for scope in needed)
        if path != ENDLESS:
            monkeypatch.setattr(auth, "EVERY", frozenset(needed))
            answer = await shared.client.request(method, address, **NO_JSON)
            assert answer.status_code != Forbidden.status, f"{method} {path}: {answer.text}"


async def test_what_the_document_does_not_name(shared: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "EVERY", frozenset())
    assert (await shared.client.get("/ui/models")).status_code == 200, "a page has nothing of its own"
    assert (await shared.client.get("/docs")).status_code == 403
    head = await shared.client.head("/v1/models")
    assert head.status_code == 403 and not head.content
    assert (await shared.client.get("/v1/nothing")).status_code == 404
