"""The BentoML service: packages, starts, probes and supervises the API process. Every route is FastAPI's.

What BentoML brings that generation must not use is set aside here: its batcher (counts items, cannot stream), its
metrics (multiprocess files, raw paths as labels), its timeout (60 s unless set), its concurrency gate (no queue, no
Retry-After) and its tracing layer (a span for every event of a stream, 1.1 ms for 40 of them even where nothing is
exported).
"""

from __future__ import annotations

from service.settings import Settings, leave_multiprocess_metrics

leave_multiprocess_metrics()  # before anything imports prometheus_client

import bentoml  # noqa: E402
import yaml  # noqa: E402

from service.api.auth import Auth  # noqa: E402
from service.deferred import DeferredApp  # noqa: E402


class NoTimeout(float):
    """A `traffic.timeout` that BentoML's schema takes (over zero) and its server reads as none (false): its layer would
    keep 0.8 KB for every request, answered or not, until that time has passed."""

    def __bool__(self) -> bool:
        return False


yaml.SafeDumper.add_representer(NoTimeout, yaml.SafeDumper.represent_float)  # `bentoml build` writes the configuration

settings = Settings()
app = DeferredApp(settings)


@bentoml.service(
    name="dosirak",
    workers=1,
    http={"host": settings.host, "port": settings.port},
    traffic={"timeout": NoTimeout(86_400)},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
    tracing={"excluded_urls": ".*"},
)
@bentoml.asgi_app(app, path="/")
class Dosirak:
    """Mounts the FastAPI app; readiness is the default model's."""

    def __is_ready__(self) -> bool:
        return app.is_ready

    def __is_alive__(self) -> bool:
        return True


# BentoML's own /healthz and /schema.json lie outside the app's middleware.
Dosirak.add_asgi_middleware(  # type: ignore[attr-defined]
    Auth, admin_key=settings.admin_key.get_secret_value() if settings.admin_key else None
)
