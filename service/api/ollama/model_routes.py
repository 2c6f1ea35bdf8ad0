"""These routes are Ollama's about models: its version, the models on disk, one of them, and those in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from models.manifest import Manifest
from models.repository.disk.journal import timestamp
from models.repository.parsers import Parsers, parsers_of
from service.api.deps import ModelsDep, Service, ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.ollama.answer_schemas import OllamaModels, OllamaRunningModels, OllamaShown, OllamaVersion
from service.api.ollama.schemas import LATEST, OllamaShowBody
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.deployments import Deployments, is_allowed
from service.errors import InvalidRequest
from service.text.files import read_chat_templates
from service.text.reasoning import reasoning_form_of
from service.text.template import ChatTemplate
from service.text.tools.choosing import tool_format_of

router = Router(tags=["ollama"])
SHOW: Final = json_body(OllamaShowBody, any_type=True)
COMPLETION: Final = ("completion",)
NAMED_TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Variables of templates whose texts decide nothing here."""
A_CENTURY: Final = timedelta(days=36_525)
"""Ollama's clients read an end that is more than 20 years ahead as for ever."""
IN_MEMORY: Final = (DeploymentState.READY, DeploymentState.DRAINING)
SIZES: Final = ((10**9, 1, "B"), (10**6, 2, "M"), (10**3, 0, "K"))


@router.get("/api/version", response_model=OllamaVersion)
async def version(service: ServiceDep) -> Response:
    """Returns the version of this software."""
    return json_response({"version": service.version})


@router.get("/api/tags", response_model=OllamaModels)
async def tags(service: ServiceDep, models: ModelsDep) -> Response:
    """Lists every version, and each name as `name:latest`."""
    return json_response({"models": await asyncio.to_thread(lambda: list(_models(service, models)))})


@router.post("/api/show", response_model=OllamaShown)
async def show(service: ServiceDep, models: ModelsDep, body: OllamaShowBody = SHOW) -> Response:
    """Returns the facts of a model."""
    manifest = service.deployments.resolve(service.deployments.allowed(models, body.reference))
    architecture = manifest.model_type
    shown = {
        "license": manifest.license,
        "modified_at": manifest.created_at,
        "details": _details(manifest),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": manifest.parameters,
            f"{architecture}.context_length": service.deployments.window(manifest),
            f"{architecture}.vocab_size": manifest.vocab_size,
        },
        "capabilities": await asyncio.to_thread(_capabilities, service, manifest),
    }
    return json_response(shown)


@router.get("/api/ps", response_model=OllamaRunningModels)
async def ps(service: ServiceDep, models: ModelsDep) -> Response:
    """Lists the versions in memory, those that stay longest first."""
    deployments, now = service.deployments, datetime.now(UTC)
    present = (each for each in deployments.all() if each.state in IN_MEMORY and is_allowed(models, each.manifest))
    running = [_running(each, deployments, now) for each in present]
    return json_response({"models": sorted(running, key=lambda each: str(each["expires_at"]), reverse=True)})


def _models(service: Service, models: frozenset[str] | None) -> Iterator[dict[str, Any]]:
    for name, manifest in _all(service.deployments):
        if is_allowed(models, manifest):
            yield _model(service, name, manifest)


def _all(deployments: Deployments) -> Iterator[tuple[str, Manifest]]:
    for name in deployments.repository.models():
        if (current := deployments.meant_by(name)) is not None:
            yield f"{name}{LATEST}", current
        yield from ((each.reference, each) for each in deployments.repository.newest_first(name))


def _model(service: Service, name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        **_named(name, manifest),
        "modified_at": manifest.created_at,
        "size": manifest.size,
        "capabilities": _capabilities(service, manifest),
    }


def _capabilities(service: Service, manifest: Manifest) -> tuple[str, ...]:
    """Returns what the version can do, in Ollama's words. Reads its templates, once for each digest and parsers."""
    repository = service.deployments.repository
    parsers, generic = parsers_of(repository, manifest), service.settings.generic_tools
    return (*COMPLETION, *_template_capabilities(manifest.digest, repository.path(manifest), parsers, generic))


@lru_cache(maxsize=1024)
def _template_capabilities(digest: str, directory: Path, parsers: Parsers, generic: bool) -> tuple[str, ...]:
    """Returns `tools` where a template of the version places them and calls are written in a form that is read, or
    where they are described for one that places none, and `thinking` where a reasoning part is marked; nothing for a
    template that cannot be read: loading the version says why."""
    try:
        sources = [each for each in read_chat_templates(directory) if each is not None]
        templates = [ChatTemplate(each, dict.fromkeys(NAMED_TOKENS, "")) for each in sources]
    except (InvalidRequest, OSError):
        return ()
    texts = "\0".join(each.literals for each in templates)
    describes = bool(templates) and templates[-1].describes_tools
    form = tool_format_of(templates[-1] if templates else None, texts, parsers.tool_parser)
    tools = form is not None and (generic if describes else any(map(_places_tools, templates)))
    thinks = templates and reasoning_form_of(texts, parsers.reasoning_parser)
    return (*(("tools",) if tools else ()), *(("thinking",) if thinks else ()))


def _places_tools(template: ChatTemplate) -> bool:
    try:
        return template.places_tools
    except InvalidRequest:
        return False


def _running(deployment: Deployment, deployments: Deployments, now: datetime) -> dict[str, Any]:
    engine = deployment.engine.info
    size = engine.memory_bytes if engine else 0
    left = deployments.seconds_to_unload(deployment)
    ends = now + min(timedelta(seconds=min(left, A_CENTURY.total_seconds())), A_CENTURY)
    return {
        **_named(deployment.manifest.reference, deployment.manifest),
        "size": size,
        "size_vram": size if engine and engine.device.startswith("cuda") else 0,
        "expires_at": timestamp(ends),
        "context_length": deployment.window,
    }


def _named(name: str, manifest: Manifest) -> dict[str, Any]:
    return {"name": name, "model": name, "digest": manifest.digest, "details": _details(manifest)}


def _details(manifest: Manifest) -> dict[str, Any]:
    return {
        "parent_model": manifest.lineage.parent or "",
        "format": "safetensors",
        "family": manifest.model_type,
        "families": [manifest.model_type],
        "parameter_size": _size(manifest.parameters),
        "quantization_level": manifest.precision.upper(),
    }


def _size(parameters: int) -> str:
    """Returns a number of parameters as Ollama writes it.

    >>> _size(8_030_261_248), _size(7_000_000), _size(12_345_678), _size(512)
    ('8.0B', '7M', '12.35M', '512')
    """
    for unit, digits, letter in SIZES:
        if parameters >= unit:
            return f"{parameters / unit:.{0 if parameters % unit == 0 else digits}f}{letter}"
    return str(parameters)
