"""The BentoML service: plain configuration, BentoML's public names only, and its own methods as bodies of ours."""

from __future__ import annotations

import gc
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bentoml
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service.api.bento import image as carried
from service.api.bento.asgi import DeferredApp
from service.api.bento.forwarding import ChatInput, GenerateInput, answer, generate_body, post
from service.api.bento.image import carried_models, image
from service.api.edge.cors import EXPOSED
from service.api.tgi.schemas import GenerateBody
from service.memory import FULL_COLLECTIONS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import inspect, yaml
from service.bento import Dosirak
print(yaml.safe_dump(Dosirak.config, default_flow_style=True, width=1000).strip())
print([method.route for method in Dosirak.apis.values()])
print([inspect.iscoroutinefunction(each) for each in (Dosirak.inner.__is_alive__, Dosirak.inner.__is_ready__)])
"""
INSIDE = re.compile(r"^\s*(?:from|import) (?:_bentoml_|bentoml\._internal|bentoml_cli)", re.MULTILINE)


def test_a_start_does_not_log_what_only_a_build_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert image() is not None
        logging.getLogger(__name__).info("heard")
    assert [record.message for record in caplog.records] == ["heard"]


def test_the_configuration_is_plain_and_the_routes_are_bentomls_own(tmp_path: Path) -> None:
    environment = {"DOSIRAK_DATA_DIR": str(tmp_path), "BENTOML_HOME": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    configuration, routes, are_coroutines = shown.stdout.strip().splitlines()[-3:]
    assert "traffic: {timeout: 1800}" in configuration
    assert sorted(json.loads(routes.replace("'", '"'))) == ["/bento/chat", "/bento/generate"]
    assert are_coroutines == "[True, True]", "else BentoML asks them in a thread, and a busy server's probes are late"


STARTED = """
import asyncio
from service.bento import Dosirak
async def started():
    outermost = Dosirak.to_asgi()
    print([each.cls.__name__ for each in outermost.user_middleware])
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    async def receive():
        return next(messages)
    async def send(message):
        assert message["type"].endswith(".complete"), message
    await outermost({"type": "lifespan"}, receive, send)
    print([each.cls.__name__ for each in outermost.user_middleware])
asyncio.run(started())
"""


def test_no_request_leaves_a_timer(tmp_path: Path) -> None:
    environment = {"DOSIRAK_DATA_DIR": str(tmp_path), "BENTOML_HOME": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", STARTED],
        cwd=ROOT,
        env={**environment, "DOSIRAK_PRELOAD": "false"},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = (json.loads(line.replace("'", '"')) for line in shown.stdout.strip().splitlines()[-2:])
    assert set(before) - set(after) == {"TimeoutMiddleware"}
    assert len(before) == len(after) + 1


def test_nothing_inside_bentoml_is_leaned_on() -> None:
    sources = [path for package in ("service", "models") for path in (ROOT / package).rglob("*.py")]
    assert [str(path) for path in sources if INSIDE.search(path.read_text())] == []


OPTIONS = {
    "model": st.text(max_size=5),
    "max_new_tokens": st.integers(-2, 2**40),
    "temperature": st.floats(allow_nan=False, allow_infinity=False),
    "top_p": st.floats(0, 1),
    "seed": st.integers(0, 2**40),
    "stop": st.lists(st.text(max_size=3), max_size=2),
}


@given(st.fixed_dictionaries({"prompt": st.text(max_size=9)}, optional=OPTIONS), st.booleans())
def test_every_field_reaches_the_body(given_fields: dict[str, Any], others: bool) -> None:
    extra: dict[str, Any] = {"parameters": {"top_k": 3}} if others else {}
    asked = GenerateInput(**given_fields, **extra)
    body = generate_body({name: getattr(asked, name) for name in GenerateInput.model_fields})
    parameters: Any = body.pop("parameters", {})
    told = {"prompt": body.pop("inputs"), **body, **parameters}
    assert told == {**given_fields, **({"top_k": 3} if others else {})}


def test_the_bodies_are_those_of_the_route() -> None:
    chat = ChatInput(messages=[{"role": "user", "content": "hi"}], session_id="s", stop=["x"], max_new_tokens=3)
    body = GenerateBody.model_validate(generate_body(dict(chat)))
    assert body.messages is not None and body.session_id == "s"
    assert body.parameters.max_new_tokens == 3 and body.parameters.stop == ["x"]


def request(*messages: Message, **scope: Any) -> Request:
    waiting = list(messages)

    async def receive() -> Message:
        return waiting.pop(0)

    headers = [(b"authorization", b"Bearer k"), (b"content-length", b"9999"), (b"content-type", b"text/plain")]
    return Request({"type": "http", "headers": headers, "method": "POST", "path": "/bento/generate", **scope}, receive)


async def test_what_the_app_notes_of_its_request_is_not_the_callers() -> None:
    asked = request({"type": "http.disconnect"}, state={"owner": "me"})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["owner"] = "another"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    assert (await post(app, asked, "/generate", {})).body == {}
    assert asked.scope["state"] == {"owner": "me"}


async def test_the_apps_headers_are_told_but_those_of_its_bytes_and_for_pages() -> None:
    """Each header that a page may read has a meaning for other clients, too."""
    told = {name.lower(): "told" for name in EXPOSED}
    own = {"content-type": "a/b", "content-length": "2", "vary": "Origin", "access-control-allow-origin": "*"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in {**told, **own}.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    context: Any = SimpleNamespace(request=request(), response=SimpleNamespace(status_code=0, headers={}))
    assert await answer(app, context, "/generate", {}) == {}
    assert (context.response.status_code, context.response.headers) == (200, told)


def test_models_are_found_by_the_whole_of_their_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "src"
    sources.mkdir()
    assert carried_models(sources) == {}, "not a bento's sources"
    (tmp_path / "bento.yaml").write_text("models: [{tag: 'demo:1'}, {tag: 'demo:2'}, {tag: 'gone:1'}]")
    stored = {"demo:1": "demo:10", "demo:2": "demo:2"}

    def get(tag: str) -> Any:
        if tag not in stored:
            raise bentoml.exceptions.NotFound(tag)
        return SimpleNamespace(tag=stored[tag], path=f"/store/{stored[tag]}")

    store = SimpleNamespace(models=SimpleNamespace(get=get), exceptions=bentoml.exceptions)
    monkeypatch.setattr(carried, "bentoml", store)
    assert carried_models(sources) == {"demo:2": Path("/store/demo:2")}
    (tmp_path / "bento.yaml").write_text("name: empty")
    assert carried_models(sources) == {}


async def test_a_server_that_has_started_scans_seldom_what_lives_as_long() -> None:
    """A full collection takes 0.1 s of the event loop and more, and probes wait for it."""
    before = gc.get_threshold()
    try:
        deferred = DeferredApp(FastAPI)
        async with deferred.router.lifespan_context(deferred):
            assert gc.get_freeze_count() > 10_000
            assert gc.get_threshold() == (*before[:2], FULL_COLLECTIONS)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
