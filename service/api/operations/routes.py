"""These routes serve operators: health, metrics, `/info`, deployments, and the servers that share records."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

from service.api.deps import Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import TEXT, Router
from service.api.http.encoding import json_response
from service.api.operations.docs_page import POLICY, SCRIPT, page
from service.api.operations.schemas import Batching, DeploymentBody, DeploymentList, DeploymentShown, Info, InstanceList
from service.api.shared.answer_schemas import Status
from service.api.shared.schemas import MAX_SEQUENCES, MAX_STOPS
from service.deployments.deployment import Deployment, DeploymentState
from service.errors import InvalidRequest
from service.evaluation.host import measured
from service.evaluation.host.machine import describe
from service.observability.live.figures import fitted_cost
from service.observability.metrics import CONTENT_TYPE, VLLM

router = Router(tags=["operations"])
DEPLOYMENT: Final = json_body(DeploymentBody)
PAGE_POLICY: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
PROBE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Yes; under BentoML as an empty line.", "content": {TEXT: {"schema": {"type": "string"}}}}
}


@router.get("/livez", response_model=Status, responses=PROBE)
async def livez() -> Response:
    """Returns 200 while the process answers. Under BentoML its own route of this name answers instead, as for the next
    two."""
    return json_response({"status": "ok"})


@router.get("/health", response_model=Status)
@router.get("/readyz", response_model=Status, responses=PROBE)
@router.get("/healthz", response_model=Status, responses=PROBE)
async def health(service: ServiceDep) -> Response:
    """Returns 200 when a request for the default model would be served now and the session database needs no operator,
    else 503. `failing` says which stores fail: what needs none of them goes on."""
    service.require_ready()
    failing = service.failing
    return json_response({"status": "ok", **({"failing": failing} if failing else {})})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceDep, compat: Text | None = None) -> Response:
    """Returns the metrics in Prometheus' text format; with `compat=vllm` under the names that vLLM gives them."""
    if compat not in (None, VLLM):
        raise InvalidRequest(
            f"`compat` must be {VLLM}, for the metrics under vLLM's names; leave it out for our own", param="compat"
        )
    with suppress(OSError):  # what a broken disk does not tell is as it was
        service.metrics.take_stock(await asyncio.to_thread(service.stock))
    exposition = await asyncio.to_thread(service.metrics.exposition, as_vllm=compat == VLLM)
    return Response(exposition, headers={"Content-Type": CONTENT_TYPE})


@router.get("/info", response_model=Info)
async def info(service: ServiceDep) -> Response:
    """Returns TGI's `/info` about the default model, with its version and digest, the engine, the effective settings
    and the host. Nothing is measured: the figures are those that `dosirak doctor` left, if it ran on this host."""
    manifest = service.deployments.resolve(None)
    deployment = _serving(service, manifest.reference)
    engine = deployment.engine.info if deployment else None
    if deployment and engine:
        engine = msgspec.structs.replace(engine, version=deployment.kind.version(engine.version) or "")
    settings = service.settings
    host = await asyncio.to_thread(describe, settings)
    shown: dict[str, Any] = {
        "model_id": manifest.reference,
        "model_sha": manifest.digest,
        "model_dtype": manifest.dtype,
        "model_device_type": engine.device if engine else None,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": settings.max_in_progress,
        "max_best_of": MAX_SEQUENCES,
        "max_stop_sequences": MAX_STOPS,
        "max_input_tokens": service.deployments.window(manifest) - 1,
        "max_total_tokens": service.deployments.window(manifest),
        "max_client_batch_size": 1,
        "router": "dosirak",
        "version": service.version,
        "model": manifest.reference,
        "digest": manifest.short_digest,
        "precision": manifest.precision,
        "architecture": manifest.architecture,
        "engine": engine,
        "settings": settings.shown(),
        "host": host,
        "measured": measured.known(settings.data_dir, host.processor),
    }
    return json_response(shown)


def _serving(service: Service, reference: str) -> Deployment | None:
    ready = (each for each in service.deployments.all() if each.state is DeploymentState.READY)
    return next((each for each in ready if each.manifest.reference == reference), None)


@router.get("/v1/deployments", response_model=DeploymentList)
async def list_deployments(service: ServiceDep) -> Response:
    """Lists every version that is loading, serving or draining."""
    return json_response({"data": service.deployments.describe()})


@router.post("/v1/deployments", response_model=DeploymentShown, status_code=202)
async def load_deployment(service: ServiceDep, body: DeploymentBody = DEPLOYMENT) -> Response:
    """Begins to load a version; poll its `state`."""
    deployment = await service.deployments.begin_loading(
        body.model, body.replicas, body.draft, body.engine, body.engine_options, body.max_model_len
    )
    return json_response(deployment.describe(), status=202)


@router.delete("/v1/deployments/{reference}", response_model=DeploymentShown, status_code=202)
async def unload_deployment(service: ServiceDep, reference: str) -> Response:
    """Drains a version and ends its engine process; poll its `state`."""
    deployment = await service.deployments.unload(reference)
    return json_response(deployment.describe(), status=202)


@router.get("/v1/batching", response_model=Batching)
async def batching(service: ServiceDep) -> Response:
    """Returns what each served version's engine has learned of its steps' cost, and its last decisions."""
    served = (each for each in service.deployments.all() if each.state is not DeploymentState.LOADING)
    return json_response({"data": [_batching(each) for each in served]})


def _batching(deployment: Deployment) -> dict[str, Any]:
    """Returns the fitted line  seconds = constant + per_token · tokens + ..  with its error, and the last decisions by
    it."""
    stats = deployment.engine.stats
    return {
        "model": deployment.manifest.reference,
        "state": deployment.state.value,
        "steps": stats.steps_total,
        "cost": fitted_cost(stats),
        "last_step": {
            "seconds": stats.step_seconds,
            "tokens": stats.step_tokens,
            "sequences": stats.step_sequences,
        },
        "decisions": {
            "token_budget": stats.token_budget,
            "preemptions": stats.preemptions_total,
            "backlog_seconds": stats.backlog_seconds,
            "deadlines_out_of_reach": stats.hopeless_total,
            "draft_tokens": stats.draft_tokens_total,
            "accepted_draft_tokens": stats.accepted_tokens_total,
        },
    }


@router.get("/openapi.json", include_in_schema=False)
async def openapi_json(service: ServiceDep) -> Response:
    return json_response(service.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(service: ServiceDep) -> Response:
    return HTMLResponse(page(service.openapi()), headers=PAGE_POLICY)


@router.get("/docs/docs.js", include_in_schema=False)
async def docs_script() -> Response:
    return FileResponse(SCRIPT, media_type="text/javascript", headers={"Cache-Control": "no-cache"})


@router.get("/v1/instances", response_model=InstanceList)
async def list_instances(service: ServiceDep) -> Response:
    """Lists the servers that share this one's records, with the age of their heartbeats and what they have loaded."""
    return json_response({"data": await service.instances.all()})
