"""`GET /`: a page for browsers, JSON for programs; no secrets, no scripts, and a request that can be typed as shown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.repository.repository import Repository
from service.api.http.pages import prefers_html
from service.api.operations.root import CHAT, TEXT, Example, example_for
from service.api.operations.root import GREETING as DEMO
from tests.api.conftest import KEY, Serve
from tests.api.reading import error
from tests.fake_service import World, publish, serving

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
BEARER = {"Authorization": f"Bearer {KEY}"}


async def test_programs_get_json(world: World) -> None:
    response = await world.client.get("/")
    shown = response.json()
    assert (shown["name"], shown["model"], shown["state"]) == ("Dosirak", "demo:1", "ready")
    assert "accept" in response.headers["vary"].lower()
    for link in shown["links"].values():
        assert (await world.client.get(link)).status_code == 200, link
    asked = await world.client.post(shown["example"]["path"], json=shown["example"]["body"])
    assert asked.status_code == 200


async def test_browsers_get_a_page_with_its_links_and_the_command(world: World) -> None:
    response = await world.client.get("/", headers=BROWSER)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "demo:1" in response.text and "curl http://localhost/v1/chat/completions" in response.text
    links = re.findall(r'href="([^"]+)"', response.text)
    assert {"docs", "info", "metrics", "openapi.json", "ui/models"} == set(links)  # relative: behind a prefix as well


async def test_the_page_can_run_no_script_and_only_its_own_style(world: World) -> None:
    response = await world.client.get("/", headers=BROWSER)
    assert "<script" not in response.text and "http-equiv" not in response.text
    style = re.search(r"<style>(.*)</style>", response.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = dict(each.strip().split(" ", 1) for each in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["style-src"] == f"'sha256-{digest}'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"


async def test_post_is_still_tgis(world: World) -> None:
    assert "generated_text" in (await world.client.post("/", json={"inputs": "hi"})).json()
    assert (await world.client.put("/", json={})).headers["allow"] == "GET, POST, HEAD"


@pytest.mark.parametrize("headers", [{}, BROWSER])
async def test_head(world: World, headers: dict[str, str]) -> None:
    got, head = await world.client.get("/", headers=headers), await world.client.head("/", headers=headers)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_with_a_key_it_is_for_the_keys_bearers_and_shows_no_key(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        error(await world.client.get("/"), 401, "unauthorized")
        refused = await world.client.get("/", headers=BROWSER)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in refused.text and "demo:1" not in refused.text
        assert refused.headers["content-security-policy"].startswith("default-src 'none'")
        for headers in ({**BEARER, **BROWSER}, BEARER):
            shown = await world.client.get("/", headers=headers)
            assert shown.status_code == 200 and KEY not in shown.text and "$DOSIRAK_ADMIN_KEY" in shown.text


@pytest.mark.parametrize("headers", [{"Host": "evil.com"}, {"Origin": "https://evil.com"}, {"X-Forwarded-For": "::1"}])
async def test_without_a_key_it_is_for_this_machine_only(world: World, headers: dict[str, str]) -> None:
    error(await world.client.get("/", headers=headers), 403, "forbidden")
    refused = await world.client.get("/", headers={**headers, **BROWSER})
    assert refused.status_code == 403 and "demo:1" not in refused.text and "evil.com" not in refused.text


async def test_it_answers_before_the_model_is_loaded_and_loads_itself_again(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False) as world:
        assert (await world.client.get("/")).json()["state"] == "starting"
        assert 'http-equiv="refresh"' in (await world.client.get("/", headers=BROWSER)).text


async def test_it_answers_where_there_is_no_default_model(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False, default_model="nobody") as world:
        shown = (await world.client.get("/")).json()
        assert (shown["model"], shown["digest"], shown["precision"]) == (None, None, None)
        assert "none yet" in (await world.client.get("/", headers=BROWSER)).text


@pytest.mark.parametrize(("name", "files", "expected"), [("demo", {}, DEMO), ("tiny", {}, CHAT)])
async def test_the_example_is_for_the_served_model(
    tmp_path: Path, name: str, files: dict[str, Any], expected: Example
) -> None:
    publish(Repository(tmp_path), name, **files)
    async with serving(tmp_path, default_model=name) as world:
        assert (await world.client.get("/")).json()["example"]["body"] == expected.body


async def test_a_model_without_a_chat_template_is_given_a_text(tmp_path: Path) -> None:
    publish(Repository(tmp_path), "tiny", chat_template=None)
    async with serving(tmp_path, default_model="tiny") as world:
        example = (await world.client.get("/")).json()["example"]
        assert example["path"] == "/generate" and example["body"] == TEXT.body
        assert (await world.client.post("/generate", json=example["body"])).status_code == 200


@given(st.text(max_size=30), st.booleans())
def test_a_shell_reads_the_command_as_it_is_meant(host: str, keyed: bool) -> None:
    command = DEMO.curl(f"http://{host}/", keyed)
    words = shlex.split(command)
    assert words[1] == f"http://{host}".rstrip("/") + "/v1/chat/completions"
    assert json.loads(words[-1]) == DEMO.body
    assert ("Authorization: Bearer $DOSIRAK_ADMIN_KEY" in words) == keyed


def test_examples_by_model() -> None:
    assert [example_for(demo, chats) for demo in (True, False) for chats in (True, False)] == [DEMO, TEXT, CHAT, TEXT]


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("text/html", True),
        ("TEXT/HTML; q=0.9, application/json; q=0.8", True),
        ("application/json, text/html;q=0.9", False),
        ("application/json", False),
        ("", False),
        ("*/*", False),
        ("text/html;q=nonsense", False),
    ],
)
def test_which_clients_prefer_a_page(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html
