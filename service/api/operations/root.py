"""This route answers `GET /`: a page for browsers, the same facts as JSON for programs. `POST /` is TGI's. The
page shows one request that the served model answers well, as it is typed into a terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from models.imports.starter import DEMO
from models.manifest import Manifest
from service.api.deps import Service, ServiceDep
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.http.pages import HTML, page, prefers_html
from service.api.operations.schemas import Root
from service.deployments.deployment import Deployment
from service.errors import DosirakError

KEY: Final = '-H "Authorization: Bearer $DOSIRAK_ADMIN_KEY"'
"""The key itself is shown nowhere: the shell puts it in."""


@dataclass(frozen=True, slots=True)
class Example:
    path: str
    body: Mapping[str, object]

    def curl(self, base_url: str, keyed: bool) -> str:
        """Returns the command for a server at `base_url`, on one line; with the key where the server has one."""
        url = shlex.quote(base_url.rstrip("/") + self.path)
        data = shlex.quote(json.dumps(self.body, ensure_ascii=False))
        return " ".join(["curl", url, *([KEY] if keyed else []), "-H 'Content-Type: application/json' -d", data])


def _chat_example(text: str) -> Example:
    """Greedy, for OpenAI's default is to sample at temperature 1, where a small model says something else at times."""
    messages = [{"role": "user", "content": text}]
    return Example("/v1/chat/completions", {"messages": messages, "max_tokens": 64, "temperature": 0})


GREETING: Final = _chat_example("안녕하세요")
CHAT: Final = _chat_example("Write one sentence about rice.")
TEXT: Final = Example("/generate", {"inputs": "Rice is", "parameters": {"max_new_tokens": 32}})


def example_for(is_demo: bool, chats: bool) -> Example:
    """Returns the demo's greeting, a question for a model that chats, or the beginning of a text for one that only
    continues texts."""
    if not chats:
        return TEXT
    return GREETING if is_demo else CHAT


router = Router(tags=["operations"])
LINKS: Final = {"ui": "/ui/models", "docs": "/docs", "openapi": "/openapi.json", "info": "/info", "metrics": "/metrics"}
PAGE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The same as a page, where `Accept` names text/html.",
        "content": {HTML: {"schema": {"type": "string"}}},
    }
}


@router.get("/", response_model=Root, responses=PAGE)
async def root(http: Request, service: ServiceDep) -> Response:
    """Returns what runs here, where to go on, and a request to try. It answers also while the default model loads."""
    shown = _shown(http, service)
    if prefers_html(http.headers.get("accept", "")):
        return page("root", shown)
    return json_response(shown, headers={"Vary": "Accept"})


def _shown(http: Request, service: Service) -> dict[str, Any]:
    manifest = _default(service)
    deployment = _deployment(service, manifest)
    is_demo = manifest is None or manifest.name == DEMO
    example = example_for(is_demo, chats=_chats(deployment))
    engine = deployment.engine.info if deployment else None
    curl = example.curl(str(http.base_url), keyed=service.is_keyed)
    return {
        "name": "Dosirak",
        "version": service.version,
        "model": manifest.reference if manifest else None,
        "digest": manifest.short_digest if manifest else None,
        "precision": manifest.precision if manifest else None,
        "state": deployment.shown_state.value if deployment else service.deployments.phase,
        "device": engine.device if engine else None,
        "kernels": engine.kernels if engine else (),
        "links": LINKS,
        "example": {"path": example.path, "body": example.body, "curl": curl},
    }


def _default(service: Service) -> Manifest | None:
    try:
        return service.deployments.resolve(None)
    except DosirakError:
        return None


def _deployment(service: Service, manifest: Manifest | None) -> Deployment | None:
    deployed = service.deployments.all() if manifest else ()
    return next((each for each in deployed if manifest and each.manifest.reference == manifest.reference), None)


def _chats(deployment: Deployment | None) -> bool:
    """Returns whether the model has a chat template; True as long as that is not known."""
    try:
        return deployment is None or deployment.tokenizer.chat_template is not None
    except DosirakError:
        return True
