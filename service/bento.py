"""The BentoML service: packages, starts, probes and supervises the API process. Every route is FastAPI's.

What BentoML brings that generation must not use is set aside here: its batcher (counts items, cannot stream), its
metrics (multiprocess files, raw paths as labels), its 60 s timeout, its concurrency gate (no queue, no Retry-After) and
its tracing layer (a span for every event of a stream, 1.1 ms for 40 of them even where nothing is exported).
"""

from __future__ import annotations

from service.settings import Settings, leave_multiprocess_metrics

leave_multiprocess_metrics()  # before anything imports prometheus_client

import bentoml  # noqa: E402

from service.api.auth import Auth  # noqa: E402
from service.app import create  # noqa: E402

LONGEST_UNARY_SECONDS = 600  # BentoML keeps a timer of this length for every request: no longer than it must be

settings = Settings()
app = create(settings)


@bentoml.service(
    name="dosirak",
    workers=1,
    http={"host": settings.host, "port": settings.port},
    traffic={"timeout": LONGEST_UNARY_SECONDS},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
    tracing={"excluded_urls": ".*"},
)
@bentoml.asgi_app(app, path="/")
class Dosirak:
    """Mounts the FastAPI app; readiness is the default model's."""

    def __is_ready__(self) -> bool:
        return bool(app.state.deployments.ready)

    def __is_alive__(self) -> bool:
        return True


if settings.admin_key is not None:  # BentoML's own /healthz and /schema.json lie outside the app's middleware
    Dosirak.add_asgi_middleware(Auth, admin_key=settings.admin_key.get_secret_value())  # type: ignore[attr-defined]
