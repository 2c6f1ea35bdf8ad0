"""Queries: what a route has no parameter for is refused by name, and so are filters that can find nothing."""

from __future__ import annotations

import re

import pytest

from tests.api.conftest import Serve
from tests.conformance import documented
from tests.fake_service import World

HI = [{"role": "user", "content": "hello"}]
PLACES = sorted(
    (method, re.sub(r"\{[^}]*\}", "x", route.path))
    for route in documented()
    for method in {"GET", "DELETE"}.intersection(route.methods or ())
    if route.path.startswith("/v1/") and route.path != "/v1/live"
)


async def test_no_route_passes_over_an_unknown_query_parameter(world: World) -> None:
    assert len(PLACES) > 40
    for method, path in PLACES:
        answer = await world.client.request(method, f"{path}?zzz[]=1")
        assert answer.status_code in (400, 422), path
        assert "`zzz` is no query parameter of this route: remove it" in answer.text, path
        named = await world.client.request(method, f"{path}?api-version=2026-01-01&beta=true")
        assert "is no query parameter" not in named.text, path


async def test_where_unknown_fields_are_ignored_so_are_parameters(serve: Serve) -> None:
    async with serve(unknown_fields="ignore") as world:
        answer = await world.client.get("/v1/keys?limit=1&zzz=2")
        assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "limit, zzz")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/responses/{response}?include[]=message.output_text.logprobs", "include"),
        ("/v1/responses/{response}?starting_after=3", "starting_after"),
        ("/v1/responses/{response}?include_obfuscation=true", "include_obfuscation"),
        ("/v1/responses/{response}/input_items?include=message.output_text.logprobs", "include"),
        ("/v1/responses/{response}/input_items?before=x", "before"),
        ("/v1/batches?order=asc", "order"),
        ("/v1/keys?limit=1", "limit"),
        ("/v1/jobs?limit=1", "limit"),
        ("/v1/deployments?limit=1", "limit"),
        ("/v1/repository/models/demo/aliases/production/history?limit=1", "limit"),
        ("/v1/feedback/summary?version=2", "version"),
    ],
)
async def test_a_parameter_that_other_lists_have_is_refused_by_name(world: World, path: str, name: str) -> None:
    response = (await world.client.post("/v1/responses", json={"input": "hello", "max_output_tokens": 1})).json()
    answer = await world.client.get(path.format(response=response["id"]))
    assert answer.status_code in (400, 422) and f"`{name}` is no query parameter" in answer.text
    assert "unsupported_field" in answer.text


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/chat/completions", "/v1/feedback", "/v1/feedback/summary"])
async def test_a_filter_by_model_names_what_is_stored(world: World, path: str) -> None:
    for wrong, sentence in (
        ("demo@production", "an alias moves from version to version"),
        ("!!", "`model` must be name or name:version: "),
    ):
        answer = await world.client.get(path, params={"model": wrong})
        assert answer.status_code in (400, 422) and sentence in answer.text
    for right in ("demo", "demo:1"):
        assert (await world.client.get(path, params={"model": right})).status_code == 200


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/audit"])
async def test_a_span_does_not_end_before_it_begins(serve: Serve, path: str) -> None:
    async with serve() as world:
        answer = await world.client.get(path, params={"since": "2030-01-01", "until": "2020-01-01"})
        assert answer.status_code == 422 and "`since` is after `until`" in answer.json()["error"]
        for right in ({"since": "2020-01-01", "until": "2030-01-01"}, {"since": "2020-01-01", "until": "2020-01-01"}):
            assert (await world.client.get(path, params=right)).status_code == 200


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_two_keys_for_one_token_are_refused(world: World, path: str) -> None:
    bias = {"logit_bias": {"5": 50, "7": 1, "05": -50}}
    body = {"messages": HI, **bias} if path.startswith("/v1") else {"inputs": "x", "parameters": bias}
    answer = await world.client.post(path, json=body)
    assert answer.status_code in (400, 422)
    assert "logit_bias` has two keys for the token 5: send one" in answer.text
