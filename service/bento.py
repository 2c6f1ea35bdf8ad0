"""The BentoML service packages, starts, probes and supervises the API process. Every answer is FastAPI's.

This module sets aside what generation must not use of it: a batcher that cannot stream, metrics by raw paths, a gate
without a queue, tracing that costs 28 µs an event of a stream, a server whose connections have no limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.environment import engine_environment, leave_multiprocess_metrics
from service.settings import settings_or_exit

leave_multiprocess_metrics()  # before any import of prometheus_client

import bentoml  # noqa: E402

from service.api.bento.asgi import BodyLimit, DeferredApp, LineFeeds, Untimed  # noqa: E402
from service.api.bento.forwarding import ChatInput, GenerateInput, answer, generate_body  # noqa: E402
from service.api.bento.image import carried_models, image  # noqa: E402
from service.api.bento.supervising import wait_for_drains  # noqa: E402
from service.api.edge.auth import Auth  # noqa: E402
from service.api.edge.cors import Cors  # noqa: E402
from service.api.edge.door import Door  # noqa: E402
from service.engine.client.process import WORKER, Started  # noqa: E402
from service.host import has_torch  # noqa: E402
from service.ui.frame import sign_in_page  # noqa: E402

if TYPE_CHECKING:
    from fastapi import FastAPI

ANSWER_SECONDS = 1800
"""The limit that others read in the bento's configuration; here no answer has one (`Untimed`)."""

settings = settings_or_exit()
wait_for_drains(settings.drain_seconds)
door = Door.serving(settings)


def build() -> FastAPI:
    """Returns the app. The first engine's process starts before, and imports its libraries beside this process."""
    ours = settings.preload and settings.engine == "dosirak" and has_torch()
    first = Started.of(WORKER, engine_environment()) if ours else None
    from service.app import create

    return create(settings, first, carried_models(), door)


app = DeferredApp(build)


@bentoml.service(
    name="dosirak",
    image=image(),
    workers=1,
    http={"host": settings.host, "port": settings.port},
    traffic={"timeout": ANSWER_SECONDS},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
    tracing={"excluded_urls": ".*"},
)
@bentoml.asgi_app(app, path="/")
class Dosirak:
    """Mounts the FastAPI app; readiness is the default model's. Two methods for BentoML's own clients call that app."""

    async def __is_ready__(self) -> bool:
        return app.is_ready

    async def __is_alive__(self) -> bool:
        return True

    @bentoml.api(route="/bento/generate", input_spec=GenerateInput)  # type: ignore[untyped-decorator]
    async def generate(self, ctx: bentoml.Context, **fields: object) -> dict[str, object]:
        """Text for a prompt: what `POST /generate` answers."""
        return await answer(app, ctx, "/generate", generate_body(fields))

    @bentoml.api(route="/bento/chat", input_spec=ChatInput)  # type: ignore[untyped-decorator]
    async def chat(self, ctx: bentoml.Context, **fields: object) -> dict[str, object]:
        """The next turn of a chat: what `POST /generate` answers to `messages`."""
        return await answer(app, ctx, "/generate", generate_body(fields))


# All layers around BentoML's own routes are added here; the last one added is the innermost.
if settings.origins:
    Dosirak.add_asgi_middleware(Cors, origins=settings.origins)  # type: ignore[attr-defined]
Dosirak.add_asgi_middleware(BodyLimit, most=settings.max_body_bytes)  # type: ignore[attr-defined]
Dosirak.add_asgi_middleware(  # type: ignore[attr-defined]
    Auth, bearers=app.bearers, sign_in=sign_in_page, origins=settings.origins, metrics=settings.open_metrics
)
Dosirak.add_asgi_middleware(LineFeeds, answering=app)  # type: ignore[attr-defined]
Dosirak.add_asgi_middleware(Untimed)  # type: ignore[attr-defined]
