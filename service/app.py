"""The composition root builds the service: settings → repository, engines, answers, routes. Only this module knows
every part.

It runs in the BentoML service (`service.bento`), or alone: `uvicorn --factory service.app:create`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from models import __version__
from models.imports.starter import demo_is_wanted, missing_of
from models.manifest import Manifest
from models.repository.repository import Repository
from models.repository.store.contents import SharedContents
from service.api.deps import Service
from service.api.edge import handlers
from service.api.edge.audited import Audited
from service.api.edge.auth import Auth
from service.api.edge.bearers import Bearers
from service.api.edge.cors import Cors
from service.api.edge.door import Door
from service.api.edge.early_answers import EarlyAnswers
from service.api.edge.handlers import unknown_route
from service.api.edge.layer import Edge
from service.api.edge.refused_bodies import RestOfBody
from service.api.edge.stopping import Stopping, is_stopping
from service.api.http.encoding import event, line
from service.api.openai.files.batch_lines import ENDPOINTS, LineAnswers
from service.api.openapi.document import document
from service.api.router import interface, plain_routes
from service.deployments.deployments import Deployments
from service.deployments.engine_choice import Kinds
from service.deployments.engine_config import engine_config, worker_of
from service.deployments.engine_handle import EngineFactory
from service.deployments.engine_options import EngineOptions
from service.deployments.instances import Instances
from service.deployments.store_follower import (
    PRUNE_SECONDS,
    PRUNE_STORE,
    REFRESH_SECONDS,
    REFRESH_STORE,
    StoreFollower,
)
from service.engine.client.client import EngineClient
from service.engine.client.engine import Engine
from service.engine.client.poison import PoisonRegister
from service.engine.client.process import WORKER, Started
from service.engine.client.replicas import Replicas
from service.engine.client.supervisor import PackedWeights, nowhere
from service.engine.kinds.kinds import vllm_python
from service.environment import engine_environment
from service.evaluation.jobs.idle_reports import IdleReports
from service.evaluation.jobs.job import Job
from service.evaluation.jobs.jobs import Jobs
from service.generation.answers import Answers
from service.generation.batches.pacing import load_of
from service.generation.batches.worker import BatchWorker, ServerState, WorkerLimits
from service.generation.conversations import Conversations
from service.generation.guard import read_guard
from service.generation.usage import Usage
from service.host import has_torch
from service.memory import return_peaks
from service.observability.inventory import take_stock
from service.observability.live.feed import Feed
from service.observability.live.figures import Figures
from service.observability.logs import configure_logging
from service.observability.metrics import Metrics
from service.observability.profiles.profiles import Profiles
from service.observability.tracing import Tracer
from service.settings import Settings
from service.storage.audit.writing import WRITE_AUDIT, Audit
from service.storage.files.contents import Contents
from service.storage.files.files import EXPIRE_FILES, SWEEP_SECONDS, Files
from service.storage.keys import Keys
from service.storage.outages import SESSIONS, STORES, Outages
from service.storage.records import SharedRecords, open_repository
from service.storage.sessions import Limits
from service.tasks import BackgroundTasks
from service.ui import routes as ui
from service.ui.frame import sign_in_page

if TYPE_CHECKING:
    from service.storage.audit.trail import Trail
    from service.storage.sessions import SessionStore

WITHOUT_TELEMETRY: Final[TelemetryConfig] = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI's own spans would stand beside ours, a handful a request, with the address and the text of errors."""
TITLE: Final = "Dosirak"
DESCRIPTION: Final = "Text generation: answers that say exactly which version spoke and what of the chat it saw."


def create(
    settings: Settings | None = None,
    first: Started | None = None,
    carried: Mapping[str, Path] | None = None,
    door: Door | None = None,
) -> FastAPI:
    """Returns the real app of one process, with its repository and one engine process for each served version; the
    version that loads first uses the process `first`. `carried` are model directories that become versions, by
    reference. Without torch the app has no engine and publishes nothing; it serves the rest."""
    return_peaks()
    settings = settings or Settings()
    configure_logging(settings)
    metrics = Metrics()
    tasks = BackgroundTasks(metrics.background_task)
    store = open_repository(settings, "server")
    deployments = Deployments(
        store,
        _engines(settings, store, metrics, first) if has_torch() else None,
        default_model=settings.default_model,
        default_replicas=settings.given_replicas,
        devices=settings.device_list,
        default_draft=settings.draft_model,
        max_model_len=settings.max_model_len,
        kinds=Kinds(
            settings.engine, vllm_python(settings.vllm_python), settings.kv_cache_dtype, settings.trusted_network
        ),
        preload=settings.preload,
        load_timeout=settings.load_timeout_seconds,
        drain_timeout=settings.drain_seconds,
        idle_timeout=settings.idle_unload_seconds,
        prepare=_preparation(store, settings, carried or {}),
        tasks=tasks,
    )
    jobs = Jobs(store, engine_environment(), tasks=tasks)
    return create_app(settings, deployments, jobs, metrics, tasks, door)


def _engines(settings: Settings, store: Repository, metrics: Metrics, first: Started | None) -> EngineFactory:
    """Returns what makes the engine of a version; the first one of our own kind uses the process `first`."""
    started = [first] if first else []

    def engine(manifest: Manifest, promised_bytes: int, options: EngineOptions) -> Engine:
        recorder = metrics.model(manifest.name, manifest.version)
        recorder.begin_engine()
        poison = PoisonRegister()

        def replica(number: int, packed_weights: PackedWeights = nowhere) -> EngineClient:
            config = engine_config(settings, store, manifest, promised_bytes, options.of_replica(number))
            worker = worker_of(settings, options.kind, config.threads)
            waiting = started.pop() if started and worker.module == WORKER else None
            return EngineClient(
                config,
                module=worker.module,
                interpreter=worker.interpreter,
                env=worker.env,
                on_step=partial(recorder.on_step, replica=number),
                on_ready=partial(recorder.on_ready, replica=number),
                started=waiting,
                poison=poison,
                packed_weights=packed_weights,
            )

        if options.replicas == 1:
            return replica(0)
        return Replicas(replica, options.replicas, settings.max_num_seqs, recorder.on_queue)

    return engine


def create_app(
    settings: Settings,
    deployments: Deployments,
    jobs: Jobs,
    metrics: Metrics,
    tasks: BackgroundTasks,
    door: Door | None = None,
) -> FastAPI:
    """Returns the app around given parts. Its lifespan starts and stops the deployments, the jobs and all background
    tasks."""
    app = FastAPI(
        title=TITLE,
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        telemetry=WITHOUT_TELEMETRY,
    )
    outages = _outages(metrics)
    instances = Instances(deployments)
    answers = _answers(settings, deployments, metrics, tasks, outages[SESSIONS], instances)
    stored_files, batch_worker = _files_and_batches(app, settings, answers, metrics, instances)
    keyed = settings.admin_key is not None
    keys = Keys(deployments.repository.records, is_managed=keyed)
    bearers = Bearers(settings.admin_key, keys)
    described = cache(partial(document, app, open_metrics=settings.open_metrics))
    app.state.deployments = deployments
    app.state.idle_reports = IdleReports(
        deployments.repository, jobs, deployments.activity, deployments.served, tasks, settings.gate
    )
    app.state.tasks = tasks
    feed = Feed(Figures(deployments, metrics), event, tasks, is_stopping)
    stock = partial(take_stock, deployments, settings.data_dir, settings.gate)
    audit = _audit(answers, instances.id, metrics, jobs, bearers)
    app.state.service = Service(
        settings,
        deployments,
        jobs,
        answers,
        stored_files,
        batch_worker,
        metrics,
        stock,
        feed,
        Profiles(deployments, tasks),
        instances,
        __version__,
        keys,
        audit,
        lambda: described(keyed=bearers.are_needed),
        outages,
    )
    handlers.install(app)
    _add_routes(app, metrics, has_key=keyed)
    _add_layers(app, app.state.service, bearers, door or Door())
    metrics.serving(__version__)
    return app


def _audit(answers: Answers, instance: str, metrics: Metrics, jobs: Jobs, bearers: Bearers) -> Audit:
    """Returns the audit, which jobs that end and peers with wrong keys are told to."""
    audit = Audit(partial(_trail, answers.conversations), instance, metrics.audit)
    jobs.on_end = partial(_tell_job, audit)
    bearers.wrong_keys.on_peer = audit.wrong_key
    return audit


def _outages(metrics: Metrics) -> dict[str, Outages]:
    """Returns what is known of each store's failing, which the metrics show."""
    outages = {each: Outages(each) for each in STORES}
    metrics.stores({name: each.is_failing for name, each in outages.items()})
    return outages


def _answers(
    settings: Settings,
    deployments: Deployments,
    metrics: Metrics,
    tasks: BackgroundTasks,
    outages: Outages,
    instances: Instances,
) -> Answers:
    open_store = partial(_open_sessions, settings, metrics, outages)
    conversations = Conversations(open_store, tasks=tasks, is_fit=lambda: instances.unfit is None)
    guard = read_guard(settings.guard_file) if settings.guard_file else None
    if guard:
        metrics.guarded_by((rule.name, rule.action.value) for rule in guard.rules)
    return Answers(
        deployments,
        metrics,
        conversations,
        max_in_progress=settings.max_in_progress,
        max_tokens_in_progress=settings.max_tokens_in_progress,
        max_queue_seconds=settings.max_queue_seconds,
        guard=guard,
        tasks=tasks,
        own_sampling=settings.generation_config == "version",
        generic_tools=settings.generic_tools,
    )


def _files_and_batches(
    app: FastAPI, settings: Settings, answers: Answers, metrics: Metrics, instances: Instances
) -> tuple[Files, BatchWorker]:
    """Returns the files of clients, and what answers the batches among them by `app`'s own routes."""
    deployments, conversations = answers.deployments, answers.conversations
    stored_files = Files(
        settings.data_dir / "files",
        conversations.store,
        settings.files_max_bytes,
        settings.files_total_bytes,
        _shared_contents(deployments.repository),
        is_fit=lambda: instances.unfit is None,
    )
    paths = {route.path for route in plain_routes(ui)}
    worker = BatchWorker(
        conversations.store,
        stored_files,
        Contents(settings.data_dir / "batches"),
        (LineAnswers(app), line),
        ServerState(
            partial(load_of, deployments, answers),
            lambda: is_stopping() or instances.unfit is not None,
            metrics.batch_line,
            metrics.batches,
        ),
        WorkerLimits(settings.max_num_seqs, settings.inter_token_latency_target_ms / 1000, settings.max_body_bytes),
        tuple(each for each in ENDPOINTS if each in paths),
    )
    return stored_files, worker


def _shared_contents(repository: Repository) -> SharedContents | None:
    """Returns the contents of files that instances share; None for an instance with a database or a store of its own:
    another's files would be without rows."""
    if repository.mirror is None or not repository.records.shared:
        return None
    return SharedContents(repository.mirror.store.remote)


def _add_routes(app: FastAPI, metrics: Metrics, has_key: bool) -> None:
    app.router.routes.extend(interface(ui).routes)
    routes = ((route.path, method) for route in plain_routes(ui) for method in route.methods or ())
    metrics.routes(routes, has_key=has_key)
    app.router.routes.append(unknown_route())


def _add_layers(app: FastAPI, service: Service, bearers: Bearers, door: Door) -> None:
    """Adds what lies around every route, the innermost first, and tells the door what it answers by itself."""
    settings, metrics, instance = service.settings, service.metrics, service.instances.id
    caller = Auth(app, bearers=lambda: bearers, origins=settings.origins).caller
    judge = EarlyAnswers(caller, service.answers, lambda: service.is_ready, instance)
    door.tell(metrics, bearers.wrong_keys, judge)
    app.state.bearers, app.state.caller = bearers, caller
    app.add_middleware(Audited, audit=app.state.service.audit, keys=app.state.service.keys)
    app.add_middleware(
        Auth,
        bearers=lambda: bearers,
        sign_in=sign_in_page,
        origins=settings.origins,
        metrics=settings.open_metrics,
    )
    app.state.tracer = tracer = _tracer(settings, metrics)
    app.add_middleware(Edge, metrics=metrics, tracer=tracer, instance=instance)
    if settings.origins:
        app.add_middleware(Cors, origins=settings.origins)
    app.add_middleware(RestOfBody)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    deployments: Deployments = app.state.deployments
    tasks: BackgroundTasks = app.state.tasks
    await app.state.service.jobs.start()
    app.state.service.instances.start(tasks)
    await deployments.start()
    if app.state.service.settings.idle_reports:
        app.state.idle_reports.start()
    conversations: Conversations = app.state.service.answers.conversations
    conversations.start()
    usage: Usage = app.state.service.answers.usage
    usage.start(tasks)
    tasks.keep(EXPIRE_FILES, app.state.service.files.expire, every=SWEEP_SECONDS)
    tasks.keep(WRITE_AUDIT, app.state.service.audit.follow)
    if deployments.repository.mirror is not None:
        follower = StoreFollower(deployments.repository)
        tasks.keep(REFRESH_STORE, follower.refresh, every=REFRESH_SECONDS)
        tasks.keep(PRUNE_STORE, follower.prune, every=PRUNE_SECONDS)
    if deployments.has_engine:
        app.state.service.batch_worker.start(tasks)
    try:
        with Stopping(deployments.stop).installed():
            yield
    finally:
        await tasks.stop()
        await deployments.stop()
        await app.state.service.audit.close()
        await usage.stop()
        await conversations.stop()
        await app.state.service.answers.grammars.close()
        await tasks.stop()  # the tasks that the last answers began
        await app.state.service.instances.stop()
        tracer: Tracer | None = app.state.tracer
        if tracer is not None:
            await tracer.close()


def _tracer(settings: Settings, metrics: Metrics) -> Tracer | None:
    """Returns what sends spans; None without a collector, and then OpenTelemetry is not imported."""
    if settings.traces_url is None:
        return None
    from service.observability.tracing.exporting import Exporting

    return Exporting(settings.traces_url, __version__, metrics)


async def _open_sessions(settings: Settings, metrics: Metrics, outages: Outages) -> SessionStore:
    """Opens the store at its first use, in a thread beside the event loop: its libraries take most of a second to
    import."""
    await asyncio.to_thread(import_module, "service.storage.sessions.store")
    from service.storage.sessions import SessionStore

    limits = Limits(
        settings.sessions_ttl_seconds,
        settings.sessions_max_message_bytes,
        settings.sessions_max_messages,
        settings.sessions_max_per_owner,
        settings.sessions_max_metadata_bytes,
    )
    return await SessionStore.open(settings.session_database, limits, observe=metrics.session_store, outages=outages)


async def _trail(conversations: Conversations) -> Trail:
    return (await conversations.store()).audit


async def _tell_job(audit: Audit, job: Job) -> None:
    await audit.job_ended(job.kind, job.state, job.id, job.result or {}, job.arguments.get("author", ""))


def _preparation(
    repository: Repository, settings: Settings, carried: Mapping[str, Path]
) -> Callable[[], Awaitable[None]]:
    """Returns the work that publishes the bento's carried models, and the demo model where it is wanted. It runs in a
    process of its own: checking and quantizing need torch."""

    async def prepare() -> None:
        if isinstance(repository.records, SharedRecords):
            await asyncio.to_thread(repository.records.wait)
        if not has_torch():
            return
        missing = [f"{reference}={path}" for reference, path in missing_of(repository, carried).items()]
        if not (missing or demo_is_wanted(repository, settings.default_model)):
            return
        starter = "models.imports.starter" if settings.is_alone else "service.deployments.first_models"
        command = (sys.executable, "-m", starter, str(settings.data_dir), *missing)
        process = await asyncio.create_subprocess_exec(*command)
        try:
            if await process.wait():
                raise RuntimeError("publishing the first models failed; the lines above say why")
        finally:
            if process.returncode is None:
                process.kill()

    return prepare
