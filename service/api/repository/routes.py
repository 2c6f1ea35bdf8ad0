"""These routes serve the model repository over HTTP: its contents, measurements, imports, deletions, comparisons.

Disk work runs in threads; conversions and measurements are jobs in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from msgspec import structs
from msgspec.structs import replace
from starlette.responses import Response

from models.errors import RepositoryError
from models.manifest import DEFAULT_ALIAS, Manifest, ModelReference
from models.repository.gate import Limits
from models.repository.parsers import Parsers, parsers_of, put_parsers
from models.repository.report import Report
from models.repository.repository import Repository
from models.repository.standing import Gate, Standing, standings
from models.weights.targets import require_target
from service.api.deps import ActorDep, Limit, Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.repository.answer_schemas import (
    ComparedVersions,
    Deleted,
    JobList,
    JobShown,
    ModelPage,
    ModelVersions,
    ParsersShown,
    Verified,
    VersionDetails,
)
from service.api.repository.schemas import EvaluateBody, ImportBody, ParsersBody, QuantizeBody
from service.errors import InvalidRequest
from service.storage.cursors import decode, encode

PREFIX: Final = "/v1/repository/models"
PAGE: Final = 100
MODELS: Final = "models"
VERSIONS: Final = "versions"
CARD: Final = "README.md"
CARD_BYTES: Final = 65_536
router = Router(tags=["repository"])
EVALUATE: Final = json_body(EvaluateBody)
IMPORT: Final = json_body(ImportBody)
PARSERS: Final = json_body(ParsersBody)
QUANTIZE: Final = json_body(QuantizeBody)


@router.get(PREFIX, response_model=ModelPage)
async def list_models(service: ServiceDep, query: Text = "", cursor: Text | None = None) -> Response:
    """Lists models whose name contains `query`, by name, 100 at a time; `cursor` is the last answer's `next_cursor`."""
    return json_response(await asyncio.to_thread(_page, service.deployments.repository, query, cursor))


@router.get(PREFIX + "/{name}", response_model=ModelVersions)
async def get_model(service: ServiceDep, name: str, cursor: Text | None = None, limit: Limit = 50) -> Response:
    """Returns a page of a model's versions, newest first, and all its aliases; `cursor` is the last answer's
    `next_cursor`."""
    repository, gate = service.deployments.repository, service.settings.gate
    return json_response(await asyncio.to_thread(_model, repository, gate, name, cursor, limit))


@router.post(PREFIX + "/{name}/versions", response_model=JobShown, status_code=202)
async def import_version(service: ServiceDep, actor: ActorDep, name: str, body: ImportBody = IMPORT) -> Response:
    """Imports a checkpoint as a job; the job's `result` names the version. It is also measured, unless `evaluate` is
    "none"."""
    ModelReference(name, body.version)
    if body.adapter_of is not None:
        await asyncio.to_thread(service.deployments.repository.resolve, body.adapter_of)
    return _accepted(service, "import", {"name": name, "author": actor, **body.model_dump()})


@router.get(PREFIX + "/{name}/versions/{version}", response_model=VersionDetails)
async def get_version(service: ServiceDep, name: str, version: str) -> Response:
    """Returns manifest, files with their sha256, the precision of each module, lineage, model card, the report of the
    measurements, and how the gate of `production` judges it."""
    repository, gate = service.deployments.repository, service.settings.gate
    return json_response(await asyncio.to_thread(_version, repository, gate, name, version))


@router.patch(PREFIX + "/{name}/versions/{version}", response_model=ParsersShown)
async def set_parsers(service: ServiceDep, name: str, version: str, body: ParsersBody = PARSERS) -> Response:
    """Says how reasoning and calls of tools in the version's answers are read. It acts on answers that begin from now
    on; other instances follow within seconds."""
    repository = service.deployments.repository
    manifest = await asyncio.to_thread(repository.get, name, version)
    parsers = await asyncio.to_thread(_parsed, repository, manifest, body.model_dump(exclude_unset=True))
    await service.deployments.follow_parsers()
    return json_response({"model": manifest.reference, **structs.asdict(parsers)})


@router.delete(PREFIX + "/{name}/versions/{version}", response_model=Deleted)
async def delete_version(service: ServiceDep, actor: ActorDep, name: str, version: str, reason: Text = "") -> Response:
    """Removes a version for good; 409 while it has an alias, is on trial or is served."""
    await asyncio.to_thread(service.deployments.delete, name, version, reason, actor)
    return json_response({"deleted": f"{name}:{version}"})


@router.post(PREFIX + "/{name}/versions/{version}/verify", response_model=Verified)
async def verify_version(service: ServiceDep, name: str, version: str) -> Response:
    """Reads every byte again; `ok` is false, with the reason, where a file is not as published."""
    repository = service.deployments.repository
    manifest = await asyncio.to_thread(repository.get, name, version)
    try:
        await asyncio.to_thread(repository.verify, manifest)
    except RepositoryError as error:
        return json_response({"ok": False, "error": str(error)})
    return json_response({"ok": True, "files": len(manifest.files), "digest": manifest.digest})


@router.post(PREFIX + "/{name}/versions/{version}/quantize", response_model=JobShown, status_code=202)
async def quantize_version(
    service: ServiceDep, actor: ActorDep, name: str, version: str, body: QuantizeBody = QUANTIZE
) -> Response:
    """Makes a version of lower precision from this one, as a job. 409 where this one cannot become it."""
    manifest = await asyncio.to_thread(service.deployments.repository.get, name, version)
    require_target(manifest, body.precision, body.group_size)
    return _accepted(service, "quantize", {"model": manifest.reference, "author": actor, **body.model_dump()})


@router.post(PREFIX + "/{name}/versions/{version}/evaluate", response_model=JobShown, status_code=202)
async def evaluate_version(service: ServiceDep, name: str, version: str, body: EvaluateBody = EVALUATE) -> Response:
    """Measures quality and speed as a job; the report is kept with the version."""
    manifest = await asyncio.to_thread(service.deployments.repository.get, name, version)
    return _accepted(service, "evaluate", {"model": manifest.reference, "effort": body.effort, "text_file": None})


@router.get(PREFIX + "/{name}/compare", response_model=ComparedVersions)
async def compare(service: ServiceDep, name: str, a: Text, b: Text) -> Response:
    """Compares two versions of a model side by side: the differences in facts, files and reports."""
    repository, gate = service.deployments.repository, service.settings.gate
    return json_response(await asyncio.to_thread(_comparison, repository, gate, name, a, b))


def shown_version(
    repository: Repository, manifest: Manifest, aliases: dict[str, str], standing: Mapping[str, Standing]
) -> dict[str, Any]:
    """Returns a version as a list shows it: its facts, without its files. `standing` is how gated aliases stand."""
    own = sorted(alias for alias, version in aliases.items() if version == manifest.version)
    broken = (phrase for alias in own if alias in standing for phrase in standing[alias].broken)
    report = _report(repository, manifest)
    return {
        "model": manifest.reference,
        "version": manifest.version,
        "digest": manifest.short_digest,
        "created_at": manifest.created_at,
        "precision": manifest.precision,
        "dtype": manifest.dtype,
        "architecture": manifest.architecture,
        "parameters": manifest.parameters,
        "context_window": manifest.context_window,
        "vocab_size": manifest.vocab_size,
        "license": manifest.license,
        "bytes": manifest.size,
        "aliases": own,
        "breaks_gate": list(dict.fromkeys(broken)),
        "lineage": asdict(manifest.lineage),
        "report": report,
        "report_state": repository.report_state(manifest, report),
    }


def _accepted(service: Service, kind: Any, arguments: dict[str, Any]) -> Response:
    job = service.jobs.submit(kind, arguments)
    return json_response(job, 202, {"Location": f"/v1/jobs/{job.id}"})


def _page(repository: Repository, query: str, cursor: str | None) -> dict[str, Any]:
    last = "" if cursor is None else decode(MODELS, cursor, lambda position: isinstance(position, str))[0]
    names = [name for name in repository.models() if query.lower() in name and name > last]
    data = [summary for name in names[:PAGE] if (summary := _summary(repository, name))]
    return {"data": data, "next_cursor": encode(MODELS, names[PAGE - 1], "") if len(names) > PAGE else None}


def _summary(repository: Repository, name: str) -> dict[str, Any] | None:
    """Returns None for a model whose last version was deleted meanwhile."""
    versions = repository.versions(name)
    if not versions:
        return None
    return {
        "name": name,
        "versions": len(versions),
        "newest": versions[-1].version,
        "aliases": repository.aliases(name),
        "bytes": sum(manifest.size for manifest in versions),
    }


def _standing(repository: Repository, gate: Gate, name: str) -> dict[str, Standing]:
    return {each.alias: each for each in standings(repository, gate, [name])}


def _model(repository: Repository, gate: Gate, name: str, cursor: str | None, limit: int) -> dict[str, Any]:
    before = None if cursor is None else decode(VERSIONS, cursor, lambda position: isinstance(position, str))
    versions = list(islice(repository.newest_first(name, before), limit + 1))
    if not versions:
        repository.resolve(name)  # raises with the names that exist
    aliases, page, standing = repository.aliases(name), versions[:limit], _standing(repository, gate, name)
    return {
        "name": name,
        "aliases": aliases,
        "versions": [shown_version(repository, each, aliases, standing) for each in page],
        "next_cursor": encode(VERSIONS, page[-1].created_at, page[-1].version) if len(versions) > limit else None,
    }


def _version(repository: Repository, gate: Gate, name: str, version: str) -> dict[str, Any]:
    manifest, limits = repository.get(name, version), gate(DEFAULT_ALIAS)
    card = repository.path(manifest) / CARD
    text = card.read_bytes()[:CARD_BYTES].decode("utf-8", errors="replace") if card.is_file() else None
    shown = shown_version(repository, manifest, repository.aliases(name), _standing(repository, gate, name))
    files, layers = ([asdict(each) for each in listed] for listed in (manifest.files, manifest.layers))
    judged = _judged(repository, manifest, limits) if limits and shown["report"] else None
    facts = {"digest": manifest.digest, "files": files, "layers": layers, "card": text, "gate": judged}
    return {**shown, **facts, **structs.asdict(parsers_of(repository, manifest))}


def _parsed(repository: Repository, manifest: Manifest, changes: Mapping[str, str | None]) -> Parsers:
    parsers = replace(parsers_of(repository, manifest), **changes)
    put_parsers(repository, manifest, parsers)
    return parsers


def _judged(repository: Repository, manifest: Manifest, limits: Limits) -> dict[str, Any]:
    checks = repository.gate_checks(manifest, DEFAULT_ALIAS, limits)
    return {"alias": DEFAULT_ALIAS, "checks": [asdict(check) for check in checks]}


def _report(repository: Repository, manifest: Manifest) -> Report | None:
    """Returns the report; None also for a damaged one: the version itself is intact, and `evaluate` makes the report
    anew."""
    try:
        return repository.report(manifest)
    except RepositoryError:
        return None


def _comparison(repository: Repository, gate: Gate, name: str, a: str, b: str) -> dict[str, Any]:
    if not a or not b:
        raise InvalidRequest("a and b are missing: name two versions, as in ?a=1&b=2")
    first, second = repository.get(name, a), repository.get(name, b)
    aliases, standing = repository.aliases(name), _standing(repository, gate, name)
    shown = [shown_version(repository, each, aliases, standing) for each in (first, second)]
    files = [{file.path: file.sha256 for file in each.files} for each in (first, second)]
    paths = sorted(files[0].keys() | files[1].keys())
    return {
        "a": shown[0],
        "b": shown[1],
        "differs": sorted(
            key
            for key in shown[0]
            if key not in ("report", "report_state", "breaks_gate", "model") and shown[0][key] != shown[1][key]
        ),
        "files": {
            "same": [path for path in paths if files[0].get(path) == files[1].get(path)],
            "differ": [path for path in paths if files[0].get(path) != files[1].get(path)],
        },
    }


@router.get("/v1/jobs", response_model=JobList)
async def list_jobs(service: ServiceDep) -> Response:
    """Lists the last jobs, newest first."""
    return json_response({"data": service.jobs.all()})


@router.get("/v1/jobs/{id}", response_model=JobShown)
async def get_job(service: ServiceDep, id: str) -> Response:
    """Returns a job's progress, and its result or error."""
    return json_response(service.jobs.get(id))


@router.delete("/v1/jobs/{id}", response_model=JobShown)
async def cancel_job(service: ServiceDep, id: str) -> Response:
    """Ends a job that waits or runs; 409 when it has ended."""
    return json_response(service.jobs.cancel(id))
